"""Measures errors between tensors, in total and for each run, in chunks and in parallel."""

from __future__ import annotations

from itertools import chain, islice
from math import inf, isfinite, lcm, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.system.threads import Memory, map_in_threads
from weightctl.verify.compare.distance import (
    MOST_KEPT,
    RUN,
    Measured,
    PairSide,
    decode_values,
    relative_root,
    run_limit,
)
from weightctl.weights.steps.numbers import Plus

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from threading import Event

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8
    from weightctl.verify.compare.pairs import Pair
    from weightctl.weights.derived import ReadableTensor

    F64 = NDArray[np.float64]
    Bools = NDArray[np.bool_]

__all__ = [
    "Samples",
    "Tile",
    "measure_pair",
    "measure_pairs",
    "measure_sample",
    "read_both",
    "read_values",
    "take_sample",
]

_PIECE = 1 << 20
# The number of values to process at once: they stay in a core's cache.
_TILE = 1 << 16
# The sample that is enough to determine whether two tensors are related.
_SAMPLE, _SAMPLES = 1 << 11, 4
# Each takes about 32 KB.
_MOST_SAMPLES_KEPT = 512
# Sums of squares at least this large are exact enough in float32.
_LEAST = 1e-30
# If the difference is at most this multiple of one encoding's error, the other encoding is not
# tried.
_NEAR = 2.0
# The float32 rounding of a few operations.
_ROUNDING = 2.0**-22
# If dividing a run's values by a power of two, nearly, leaves at most this fraction of the
# difference, this fraction of the limit applies.
_REST, _NEAR_POWER, _LEAST_FACTOR = 0.1, 0.1, 0.05
_OF_ONE_FACTOR = 0.4
# An encoding does not turn a run into zeros if it would lose less than this fraction of it.
_KEPT = 0.25
# A run that an encoding happens to represent well may still have this fraction of the typical
# error.
_SHARE = 0.5


class _Piece(NamedTuple):
    pair: Pair
    start: int
    stop: int


def read_values(tensor: ReadableTensor, start: int, count: int) -> F32:
    """Read a range of a tensor's values, in whole blocks, as float32."""
    encoding = tensor.info.encoding
    first = start // encoding.block * encoding.block
    stop = min(-(-(start + count) // encoding.block) * encoding.block, tensor.info.size)
    raw = bytearray((stop - first) // encoding.block * encoding.size)
    tensor.read_into(first // encoding.block * encoding.size, memoryview(raw))
    numbers = decode_values(np.frombuffer(raw, np.uint8), encoding)
    return numbers[start - first : start - first + count]


def read_both(pair: Pair, start: int, count: int) -> tuple[F32, F32]:
    """Read a range of the values of both tensors of a pair, in whole blocks, as float32."""
    return read_values(pair.tensor, start, count), read_values(pair.reference, start, count)


def measure_pair(pair: Pair, *, in_runs: bool = True) -> Measured:
    """Return the distance of a pair."""
    (found,) = measure_pairs([pair], in_runs=in_runs)
    return found


def take_sample(tensor: ReadableTensor) -> F32:
    """Return a sample of a tensor's values, from all over it."""
    size = tensor.info.size
    starts = dict.fromkeys(size * part // _SAMPLES // RUN * RUN for part in range(_SAMPLES))
    pieces = [read_values(tensor, start, min(_SAMPLE, size - start)) for start in starts]
    return np.concatenate(pieces)


def measure_sample(pair: Pair, sample: Callable[[ReadableTensor], F32] = take_sample) -> float:
    """Return the relative RMSE of a sample of a pair."""
    own, reference = (sample(each).astype(np.float64) for each in (pair.tensor, pair.reference))
    error, squares = float(np.sum((own - reference) ** 2)), float(np.vdot(reference, reference))
    return relative_root(error, squares)


def measure_pairs(
    pairs: Sequence[Pair],
    progress: Callable[[float], object] | None = None,
    *,
    in_runs: bool = True,
) -> Generator[Measured, None, None]:
    """Yield the distance of each pair; both tensors have the same shape and numeric values.

    Costs of encodings and runs beyond `run_limit` are only measured if `in_runs`. Each thread uses
    a few megabytes. Raises `FormatError` if a file cannot be read.
    """
    total = sum(pair.tensor.info.size for pair in pairs) or 1
    memory = Memory()

    def measure(piece: _Piece, ended: Event) -> Measured:
        limit = run_limit(piece.pair) if in_runs else None
        return Measured() if ended.is_set() else _measure_piece(piece, limit, memory)

    done = 0
    with map_in_threads(measure, chain.from_iterable(map(_cut_pieces, pairs))) as made:
        for pair in pairs:
            found = Measured()
            for part in islice(made, -(-pair.tensor.info.size // _piece_length(pair))):
                found.add(part)
                done += part.count
                if progress is not None:
                    progress(done / total)
            yield found


def _cut_pieces(pair: Pair) -> Iterator[_Piece]:
    size, step = pair.tensor.info.size, _piece_length(pair)
    for start in range(0, size, step):
        yield _Piece(pair, start, min(start + step, size))


def _piece_length(pair: Pair) -> int:
    unit = _common_block(pair)
    return _PIECE // unit * unit


def _common_block(pair: Pair) -> int:
    return lcm(RUN, pair.tensor.info.encoding.block, pair.reference.info.encoding.block)


def _measure_piece(piece: _Piece, limit: float | None, memory: Memory) -> Measured:
    pair, total = piece.pair, Measured()
    sides = pair.sides
    raws = [
        _read(tensor, piece.start, memory.room(use, _count_bytes(tensor, piece)))
        for use, tensor in (("own", pair.tensor), ("reference", pair.reference))
    ]
    unit = _common_block(pair)
    step = max(_TILE // unit, 1) * unit
    is_shifted = _adds(pair)
    for start in range(0, piece.stop - piece.start, step):
        count = min(step, piece.stop - piece.start - start)
        parts = [
            _slice_blocks(raw, side, start, count) for raw, side in zip(raws, sides, strict=True)
        ]
        tile = Tile(parts, sides, piece.start + start, count, is_shifted)
        # The error state is per thread; non-finite values are examined, not warned of.
        with np.errstate(all="ignore"):
            total.add(tile.measure(limit))
    return total


def _adds(pair: Pair) -> bool:
    """Whether a constant was added to one side, so that its rounding errors are absolute."""
    steps = {*pair.tensor.origin.steps, *pair.reference.origin.steps}
    return not steps.isdisjoint({str(Plus(1.0)), str(Plus(-1.0))})


def _count_bytes(tensor: ReadableTensor, piece: _Piece) -> int:
    encoding = tensor.info.encoding
    return (piece.stop - piece.start) // encoding.block * encoding.size


def _read(tensor: ReadableTensor, start: int, room: memoryview) -> U8:
    encoding = tensor.info.encoding
    tensor.read_into(start // encoding.block * encoding.size, room)
    return np.frombuffer(room, np.uint8)


def _slice_blocks(raw: U8, side: PairSide, start: int, count: int) -> U8:
    block, size = side.encoding.block, side.encoding.size
    return raw[start // block * size : (start + count) // block * size]


class Samples:
    """A cache of samples of the tensors that were requested last, by object identity."""

    def __init__(self) -> None:
        # The tensor is kept too, so that its id is not reused.
        self._kept: dict[int, tuple[ReadableTensor, F32]] = {}

    def of(self, tensor: ReadableTensor) -> F32:
        """Return a sample of a tensor's values, from all over it."""
        kept = self._kept.pop(id(tensor), None) or (tensor, take_sample(tensor))
        self._kept[id(tensor)] = kept
        if len(self._kept) > _MOST_SAMPLES_KEPT:
            del self._kept[next(iter(self._kept))]
        return kept[1]


class Tile:
    """A chunk of values of both tensors, cut into runs; the last run is padded with zeros."""

    def __init__(
        self,
        raws: Sequence[U8],
        sides: tuple[PairSide, PairSide],
        start: int,
        count: int,
        is_shifted: bool,
    ) -> None:
        self._raws, self._sides = raws, sides
        self._start, self._count = start, count
        self._is_shifted = is_shifted
        self._is_same = sides[0] == sides[1]

    def measure(self, limit: float | None) -> Measured:
        """Return the distance; `limit` is the largest error of a run, relative to its cost.

        If it is None, neither costs nor runs beyond the limit are measured.
        """
        found = Measured(self._count)
        own, reference = (
            _shape_runs(decode_values(raw, side.encoding))
            for raw, side in zip(self._raws, self._sides, strict=True)
        )
        first = self._start // RUN
        difference = own - reference
        error, squares = _sum_squares(difference), _sum_squares(reference)
        if not (isfinite(error.sum()) and isfinite(squares.sum())):
            own, reference = self._zero_nonfinite(own, reference, found)
            difference = own - reference
            error, squares = _sum_squares(difference), _sum_squares(reference)
        found.squares = float(squares.sum())
        is_unequal = self._find_unequal(error)
        if is_unequal is None:
            # Equal bytes have no error.
            found.own_squares = found.product = found.squares
            if not self._is_same and limit is not None:
                found.cost = float(self._measure_cost(own, reference, squares, error, limit).sum())
            return found
        own_squares = _sum_squares(own)
        found.own_squares = float(own_squares.sum())
        # It cannot be derived from the squares if one value is huge.
        found.product = float(np.einsum("rn,rn->", own, reference, dtype=np.float64))
        found.error = float(error.sum())
        found.max_error = float(np.abs(difference).max())
        if limit is None:
            found.runs_unequal = int(np.count_nonzero(is_unequal))
            return found
        cost = self._measure_cost(own, reference, squares, error, limit)
        found.cost = float(cost.sum())
        ratio = error / self._allow_error(cost, squares)
        found.worst = sqrt(float(ratio.max()))
        is_beyond = self._find_beyond(ratio, limit, error, own, reference)
        # The limit of a coarse encoding may be as large as the loss of a whole run.
        is_beyond |= (own_squares == 0) & (cost < squares * _KEPT)
        beyond = np.flatnonzero(is_beyond)
        found.runs_beyond = len(beyond)
        found.beyond = (beyond[:MOST_KEPT] + first).tolist()
        unequal = np.flatnonzero(is_unequal)
        found.runs_unequal = len(unequal)
        found.unequal = (unequal[:MOST_KEPT] + first).tolist()
        return found

    @staticmethod
    def _find_beyond(ratio: F64, limit: float, error: F64, own: F32, reference: F32) -> Bools:
        """Return the runs above the limit, or near it with all values off by one power of two.

        A flipped bit of a scale's exponent multiplies by a power of two. An encoder may also shrink
        all values of a run for the sake of its largest ones, but by any factor.
        """
        beyond = ratio > limit * limit
        near = np.flatnonzero(ratio > (limit * _OF_ONE_FACTOR) ** 2)
        if near.size:
            runs, wanted = (each[near].astype(np.float64) for each in (own, reference))
            product = np.vecdot(runs, wanted)
            factor = product / (np.vecdot(wanted, wanted) + np.finfo(np.float64).tiny)
            power = np.log2(np.maximum(factor, _LEAST_FACTOR))
            is_power = (np.rint(power) != 0) & (np.abs(power - np.rint(power)) < _NEAR_POWER)
            rest = np.vecdot(runs, runs) - factor * product
            beyond[near[is_power & (rest < error[near] * _REST)]] = True
        return beyond

    def _zero_nonfinite(self, own: F32, reference: F32, found: Measured) -> tuple[F32, F32]:
        is_finite, other = np.isfinite(own), np.isfinite(reference)
        is_damaged = is_finite != other
        is_alike = (own == reference) | (np.isnan(own) & np.isnan(reference))
        is_damaged |= ~is_finite & ~other & ~is_alike
        found.nonfinite = int(np.count_nonzero(is_damaged))
        found.nonfinite_there = int(np.count_nonzero(is_finite & ~other))
        if found.nonfinite:
            found.first_nonfinite = self._start + int(np.argmax(is_damaged.reshape(-1)))
        both = is_finite & other
        return np.where(both, own, np.float32(0)), np.where(both, reference, np.float32(0))

    def _find_unequal(self, error: F64) -> Bools | None:
        """Return which runs are not equal; bytes are compared if both have one encoding."""
        if not self._is_same:
            return error > 0 if error.any() else None
        one, other = self._raws
        if np.array_equal(one, other):
            return None
        encoding = self._sides[0].encoding
        width = encoding.size * max(RUN // encoding.block, 1)
        is_unequal = np.zeros(-(-len(one) // width), bool)
        is_unequal[np.flatnonzero(one != other) // width] = True
        return np.repeat(is_unequal, max(encoding.block // RUN, 1))[: len(error)]

    def _measure_cost(
        self, own: F32, reference: F32, squares: F64, error: F64, limit: float
    ) -> F64:
        """Return the squared error that the encodings cause in each run.

        The values of the side with more bits are put through the other side's encoding. If the
        difference is larger than that explains, the error of the finer encoding is added.
        """
        mine, theirs = self._sides
        if self._is_same:
            # The values that both were made from are unknown.
            return self._estimate_cost(mine, squares) * 2
        ways = [(mine, reference), (theirs, own)]
        if mine.bits > theirs.bits:
            ways.reverse()
        cost = np.zeros(len(squares))
        for side, numbers in ways:
            cost += self._measure_cost_of(side, numbers, squares)
            is_beyond = (error > limit * limit * self._allow_error(cost, squares)).any()
            if not is_beyond and error.sum() <= _NEAR**2 * cost.sum():
                break
        return cost

    def _measure_cost_of(self, side: PairSide, numbers: F32, squares: F64) -> F64:
        if side.keeps_all:
            return np.zeros(len(squares))
        flat = numbers.reshape(-1)[: self._count]
        through = side.through(np.ascontiguousarray(flat))
        if through is None:
            return self._estimate_cost(side, squares)
        lost = _sum_squares(_shape_runs(through - flat))
        return np.where(np.isfinite(lost), lost, 0)

    def _estimate_cost(self, side: PairSide, squares: F64) -> F64:
        """Return the typical squared error of each run, given the squares of its whole block."""
        if side.keeps_all:
            return np.zeros(len(squares))
        together = len(squares) if side.is_apart else max(side.encoding.block // RUN, 1)
        if together > 1:
            groups = np.add.reduceat(squares, np.arange(0, len(squares), together)) / together
            squares = np.repeat(groups, together)[: len(squares)]
        return squares * side.typical**2

    def _allow_error(self, cost: F64, squares: F64) -> F64:
        coarser = max(side.typical for side in self._sides)
        least = squares * ((_SHARE * coarser) ** 2 + _ROUNDING**2)
        if self._is_shifted:
            least = least + RUN * _ROUNDING**2
        return np.maximum(cost, least) + np.finfo(np.float64).tiny


def _shape_runs(numbers: F32) -> F32:
    """Return values as rows of one run each."""
    rest = -len(numbers) % RUN
    if rest:
        numbers = np.concatenate([numbers, np.zeros(rest, np.float32)])
    return numbers.reshape(-1, RUN)


def _sum_squares(runs: F32) -> F64:
    """Return the sum of squares of each run."""
    found: F64 = np.vecdot(runs, runs).astype(np.float64)
    if found.size and not (found.min() > _LEAST and found.max() < inf):
        # Squares of such small or large values are outside the range of float32.
        wide = runs.astype(np.float64)
        found = np.vecdot(wide, wide)
    return found
