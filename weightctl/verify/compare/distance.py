"""Distance of a tensor from its reference, and limits derived from the encodings' errors.

Values are compared in runs of `RUN` consecutive values. Each chunk is measured, and the
measurements are added. The limits have a margin, so that quantizations with an importance matrix
are within them, and so are two quantizations of one model. Random values with the reference's root
mean square exceed them.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from itertools import chain, islice
from math import inf, isfinite, lcm, nan, sqrt
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightctl.kernels import run_comparer
from weightctl.system.threads import Memory, map_in_threads
from weightctl.verify.compare.pairing import RUN, PairSide, decode_values, take_sample
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.numbers import Plus, read_floats
from weightctl.weights.steps.rows import RowOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from threading import Event

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8
    from weightctl.verify.compare.pairing import Pair
    from weightctl.weights.derived import ReadableTensor

    F64 = NDArray[np.float64]
    Bools = NDArray[np.bool_]

# The number of wrong runs whose indices are kept.
MOST_KEPT = 4096
# The largest error of a run, as a multiple of the expected error. If a block has many runs, a run
# with small values may lose all of them.
_RUN_LIMIT, _RUN_OF_MANY_LIMIT = 8.0, 12.0
_FACTOR = 3.0
# With error feedback, columns that have little effect on the outputs take the errors of others.
# Errors of tensors that lower the divergence were up to 5.1 times the expected ones, and those of
# runs up to 78 times.
_RUN_FED_BACK_LIMIT, _FED_BACK_FACTOR = 256.0, 8.0
# Zeros, and values unrelated to the reference, have a larger relative RMSE than this in any
# encoding.
_LOST = 0.75
_ABOVE_LOST = 1.5
# Each tensor and each run is allowed at least this fraction of the typical error, even if the
# encoding represents its values well by chance.
_SHARE = 0.5
_IN_SAMPLE, _LEAST_IN_SAMPLE = 8.0, 1e-3
_ROUNDING = 2.0**-20
# If two tensors have one encoding and at most this fraction of their runs differ, these runs are
# damaged.
_FEW = 0.05


def _keep_first_known(own: int, other: int) -> int:
    return own if own >= 0 else other


def _join_kept(own: list[int], other: list[int]) -> list[int]:
    return own + other[: MOST_KEPT - len(own)]


# The key of a dataclass field's metadata for the function that joins two measurements; without it,
# they are added.
_OF_BOTH = "of_both"


@dataclass(slots=True)
class Measured:
    """The distance of a tensor from its reference; measurements of chunks can be added.

    `squares` is the sum of the reference's squares, `own_squares` that of the tensor, and `product`
    the inner product of both. `error` is the sum of squared differences, and `cost` the sum that
    the encodings are expected to cause. `worst` is the largest error of a run, as a multiple of the
    expected error. `runs_beyond` is the number of runs above the limit, and `beyond` has the
    indices of the first `MOST_KEPT` of them. `runs_unequal` and `unequal` are the same for runs
    that are not equal.

    `nonfinite` is the number of indices at which only one side is finite, or at which both sides
    have different infinite or NaN values. `nonfinite_there` counts those where only the tensor is
    finite. `first_nonfinite` is the first of these indices, -1 if there is none.
    """

    count: int = 0
    squares: float = 0.0
    own_squares: float = 0.0
    product: float = 0.0
    error: float = 0.0
    cost: float = 0.0
    max_error: float = field(default=0.0, metadata={_OF_BOTH: max})
    worst: float = field(default=0.0, metadata={_OF_BOTH: max})
    runs_beyond: int = 0
    runs_unequal: int = 0
    nonfinite: int = 0
    nonfinite_there: int = 0
    first_nonfinite: int = field(default=-1, metadata={_OF_BOTH: _keep_first_known})
    beyond: list[int] = field(default_factory=list[int], metadata={_OF_BOTH: _join_kept})
    unequal: list[int] = field(default_factory=list[int], metadata={_OF_BOTH: _join_kept})

    def add(self, other: Measured) -> None:
        for each in fields(self):
            of_both: Any = each.metadata.get(_OF_BOTH, add)
            setattr(self, each.name, of_both(getattr(self, each.name), getattr(other, each.name)))

    @property
    def runs(self) -> int:
        return -(-self.count // RUN)

    @property
    def relative_rmse(self) -> float:
        """The root of the squared error divided by the reference's squares.

        It is infinite if `nonfinite` is not 0.
        """
        if self.nonfinite:
            return inf
        return relative_root(self.error, self.squares)

    @property
    def expected(self) -> float:
        """The relative RMSE that the encodings are expected to cause."""
        return relative_root(self.cost, self.squares)

    @property
    def cosine(self) -> float:
        """The cosine between the tensors as vectors; 1 if both are zero, 0 if only one is.

        It is NaN if `nonfinite` is not 0.
        """
        if self.nonfinite:
            return nan
        if self.error == 0:
            return 1.0
        lengths = sqrt(self.squares) * sqrt(self.own_squares)
        if lengths == 0:
            return 0.0
        return max(-1.0, min(1.0, self.product / lengths))


def relative_root(squared: float, squares: float) -> float:
    """Return the square root of `squared / squares`; 0 if `squared` is 0, infinite for n/0."""
    if squared == 0:
        return 0.0
    return sqrt(squared / squares) if squares else inf


def run_limit(pair: Pair) -> float:
    """Return the limit of a run's error, as a multiple of the error that the encodings cause."""
    if pair.is_fed_back:
        return _RUN_FED_BACK_LIMIT
    block = max(pair.tensor.info.encoding.block, pair.reference.info.encoding.block)
    return _RUN_LIMIT if block <= RUN else _RUN_OF_MANY_LIMIT


def expected_error(pair: Pair, measured: Measured) -> float:
    """Return the relative RMSE that the encodings cause, at least half the typical one."""
    least = _SHARE * max(side.typical for side in pair.sides)
    return max(measured.expected, least, _ROUNDING)


def allowed_error(pair: Pair, measured: Measured) -> float:
    """Return the relative RMSE above which a tensor does not match its reference."""
    usual = expected_error(pair, measured)
    factor = _FED_BACK_FACTOR if pair.is_fed_back else _FACTOR
    return min(factor * usual, max(_LOST, _ABOVE_LOST * usual))


def sample_limit(pair: Pair) -> float:
    """Return the relative RMSE of a sample above which the whole tensor cannot match."""
    coarser = max(side.typical for side in pair.sides)
    return min(max(_IN_SAMPLE * coarser, _LEAST_IN_SAMPLE), 1.0)


def is_lone_change(pair: Pair, measured: Measured) -> bool:
    """Whether two tensors have the same quantized encoding and are equal except for a few runs.

    Such runs are damaged, since two quantizations of one model do not differ in a few runs only.
    False for encodings in full precision, where the rounding of computations may cause this.
    """
    side, other = pair.sides
    if side != other or side.keeps_all:
        return False
    return 0 < measured.runs_unequal <= max(1, _FEW * measured.runs)


def is_within(pair: Pair, measured: Measured) -> bool:
    """Whether a tensor matches its reference within the errors of their encodings."""
    is_far = measured.relative_rmse > allowed_error(pair, measured)
    is_damaged = measured.runs_beyond or measured.nonfinite or is_lone_change(pair, measured)
    return not is_far and not is_damaged


def rows_of_runs(pair: Pair, runs: list[int]) -> list[int]:
    """Return the rows in which runs start; a row is one index of the first dimension.

    The rows are those of the naming convention in which the pair is compared.
    """
    shape = pair.tensor.info.shape
    width = pair.tensor.info.size // shape[0] if shape and shape[0] else 1
    return list(dict.fromkeys(run * RUN // width for run in runs))


def stored_rows(pair: Pair, rows: list[int]) -> list[int]:
    """Return the rows of the stored tensor, ascending, that `rows` of the compared tensor are."""
    step = pair.tensor.step if isinstance(pair.tensor, DerivedTensor) else None
    return sorted(step.order[row] for row in rows) if isinstance(step, RowOrder) else rows


# Measures errors between tensors, in total and for each run, in chunks and in parallel.

# Sums of squares at least this large are exact enough in float32.
_LEAST = 1e-30
# If the difference is at most this multiple of one encoding's error, the error of the other
# encoding is not measured.
_NEAR = 2.0
# The float32 rounding of a few operations.
_OPERATIONS = 2.0**-22
# A run may be multiplied by a power of two: its logarithm may differ by `_NEAR_POWER` from an
# integer, the factor is at least `_LEAST_FACTOR`, and dividing the run by it leaves at most the
# fraction `_REST` of the squared difference. For such a run, this fraction of the limit applies.
_REST, _NEAR_POWER, _LEAST_FACTOR = 0.1, 0.1, 0.05
_OF_ONE_FACTOR = 0.4
# If the encodings explain an error of less than this fraction of a run's squares, they do not
# explain that all values of the run are zero.
_KEPT = 0.25
# The number of values that usually share a scale in schemes with groups.
_GROUP = 128
_PIECE = 1 << 20
# The number of values to process at once, so that they stay in a core's cache.
_TILE = 1 << 16


class Piece(NamedTuple):
    """A range of elements of a pair."""

    pair: Pair
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """The bytes of both tensors."""
        return _count_bytes(self.pair.tensor, self) + _count_bytes(self.pair.reference, self)


def read_both(pair: Pair, start: int, count: int) -> tuple[F32, F32]:
    """Return `count` values of both tensors of a pair, from `start` on, as float32."""
    return read_floats(pair.tensor, start, count), read_floats(pair.reference, start, count)


def measure_pair(pair: Pair, *, in_runs: bool = True) -> Measured:
    (found,) = measure_pairs([pair], in_runs=in_runs)
    return found


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
    elsewhere: Callable[[Sequence[Piece]], Iterator[Measured]] | None = None,
) -> Generator[Measured, None, None]:
    """Yield the distance of each pair, whose tensors must have the same shape.

    The costs of encodings, and the runs beyond `run_limit`, are only measured if `in_runs` is set.
    Each thread uses a few megabytes of memory. If `elsewhere` is not None, it measures the pieces
    in place of threads of this process. Raises `FormatError` if a file cannot be read.
    """
    total = sum(pair.tensor.info.size for pair in pairs) or 1
    pieces = chain.from_iterable(map(_cut_pieces, pairs))
    done = 0
    measuring = (
        measure_pieces(pieces, in_runs=in_runs)
        if elsewhere is None
        else nullcontext(elsewhere([*pieces]))
    )
    with measuring as made:
        for pair in pairs:
            found = Measured()
            for part in islice(made, -(-pair.tensor.info.size // _piece_length(pair))):
                found.add(part)
                done += part.count
                if progress is not None:
                    progress(done / total)
            yield found


@contextmanager
def measure_pieces(
    pieces: Iterable[Piece], *, in_runs: bool = True, threads: int | None = None
) -> Generator[Iterator[Measured]]:
    memory = Memory()

    def measure(piece: Piece, ended: Event) -> Measured:
        limit = run_limit(piece.pair) if in_runs else None
        return Measured() if ended.is_set() else _measure_piece(piece, limit, memory)

    with map_in_threads(measure, pieces, threads=threads) as made:
        yield made


def _cut_pieces(pair: Pair) -> Iterator[Piece]:
    size, step = pair.tensor.info.size, _piece_length(pair)
    for start in range(0, size, step):
        yield Piece(pair, start, min(start + step, size))


def _piece_length(pair: Pair) -> int:
    unit = _common_block(pair)
    return _PIECE // unit * unit


def _common_block(pair: Pair) -> int:
    return lcm(RUN, pair.tensor.info.encoding.block, pair.reference.info.encoding.block)


def _measure_piece(piece: Piece, limit: float | None, memory: Memory) -> Measured:
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
        # NumPy's error state is per thread. Non-finite values are counted, so warnings are off.
        with np.errstate(all="ignore"):
            total.add(tile.measure(limit))
    return total


def _adds(pair: Pair) -> bool:
    """Whether 1 was added to or subtracted from a side, so that its rounding is absolute."""
    steps = {*pair.tensor.origin.steps, *pair.reference.origin.steps}
    return not steps.isdisjoint({str(Plus(1.0)), str(Plus(-1.0))})


def _count_bytes(tensor: ReadableTensor, piece: Piece) -> int:
    encoding = tensor.info.encoding
    return (piece.stop - piece.start) // encoding.block * encoding.size


def _read(tensor: ReadableTensor, start: int, room: memoryview) -> U8:
    encoding = tensor.info.encoding
    tensor.read_into(start // encoding.block * encoding.size, room)
    return np.frombuffer(room, np.uint8)


def _slice_blocks(raw: U8, side: PairSide, start: int, count: int) -> U8:
    block, size = side.encoding.block, side.encoding.size
    return raw[start // block * size : (start + count) // block * size]


# Distances between a few thousand values of both tensors of a pair, in total and per run.


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
        """Return the distance between the two chunks.

        `limit` is the largest error of a run, as a multiple of the error that the encodings cause.
        If it is None, neither these errors nor the runs beyond the limit are measured.
        """
        found = Measured(self._count)
        own, reference = (
            _shape_runs(decode_values(raw, side.encoding))
            for raw, side in zip(self._raws, self._sides, strict=True)
        )
        first = self._start // RUN
        sums = compare_runs(own, reference)
        if not (isfinite(sums.error.sum()) and isfinite(sums.squares.sum())):
            own, reference = self._zero_nonfinite(own, reference, found)
            sums = compare_runs(own, reference)
        error, squares = sums.error, sums.squares
        found.squares = float(squares.sum())
        is_unequal = self._find_unequal(error)
        if is_unequal is None:
            # Equal bytes have no error.
            found.own_squares = found.product = found.squares
            if not self._is_same and limit is not None:
                found.cost = float(self._measure_cost(own, reference, squares, error, limit).sum())
            return found
        found.own_squares = float(sums.own_squares.sum())
        # Deriving the product from the squares would be inexact if one value is huge.
        found.product = sums.product
        found.error = float(error.sum())
        found.max_error = sums.max_error
        if limit is None:
            found.runs_unequal = int(np.count_nonzero(is_unequal))
            return found
        cost = self._measure_cost(own, reference, squares, error, limit)
        found.cost = float(cost.sum())
        allowed = self._allow_error(cost, squares)
        ratio = error / allowed
        found.worst = sqrt(float(ratio.max()))
        is_beyond = self._find_beyond(ratio, limit, error, own, reference)
        # The limit of a coarse encoding may be as large as the loss of a whole run.
        is_beyond |= (sums.own_squares == 0) & (np.maximum(cost, allowed) < squares * _KEPT)
        beyond = np.flatnonzero(is_beyond)
        found.runs_beyond = len(beyond)
        found.beyond = (beyond[:MOST_KEPT] + first).tolist()
        unequal = np.flatnonzero(is_unequal)
        found.runs_unequal = len(unequal)
        found.unequal = (unequal[:MOST_KEPT] + first).tolist()
        return found

    @staticmethod
    def _find_beyond(ratio: F64, limit: float, error: F64, own: F32, reference: F32) -> Bools:
        """Return whether each run is above the limit, or near it and multiplied by a power of two.

        A flipped bit in a scale's exponent multiplies a run by a power of two. An encoder may also
        shrink all values of a run to fit its largest values, but by any factor.
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
        """Return whether each run is unequal; None if no run is.

        If both sides have the same encoding, bytes are compared instead of values.
        """
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

        The values of the side with more bits are encoded and decoded with the other side's
        encoding. If this does not explain the difference, the error of the finer encoding is added.
        """
        mine, theirs = self._sides
        if self._is_same:
            # The values that both sides were encoded from are unknown.
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
        lost = compare_runs(_shape_runs(through), _shape_runs(flat)).error
        return np.where(np.isfinite(lost), lost, 0)

    def _estimate_cost(self, side: PairSide, squares: F64) -> F64:
        """Return the typical squared error of each run, from the mean squares of its block."""
        if side.keeps_all:
            return np.zeros(len(squares))
        together = len(squares) if side.is_apart else max(side.encoding.block // RUN, 1)
        if together > 1:
            groups = np.add.reduceat(squares, np.arange(0, len(squares), together)) / together
            squares = np.repeat(groups, together)[: len(squares)]
        return squares * side.typical**2

    def _allow_error(self, cost: F64, squares: F64) -> F64:
        coarser = max(side.typical for side in self._sides)
        least = squares * ((_SHARE * coarser) ** 2 + _OPERATIONS**2)
        if self._is_shifted:
            least = least + RUN * _OPERATIONS**2
        grouped = max((side.typical for side in self._sides if side.is_apart), default=0.0)
        if grouped:
            # One large value determines the errors of its whole group.
            least = np.maximum(least, _find_largest_near(squares) * grouped**2)
        return np.maximum(cost, least) + np.finfo(np.float64).tiny


def _find_largest_near(squares: F64) -> F64:
    """Return, for each run, the largest sum of squares among the runs that may share its scale.

    The groups of a scheme usually have at most 128 values.
    """
    found = squares.copy()
    for distance in range(1, _GROUP // RUN):
        np.maximum(found[distance:], squares[:-distance], out=found[distance:])
        np.maximum(found[:-distance], squares[distance:], out=found[:-distance])
    return found


def _shape_runs(numbers: F32) -> F32:
    """Return values as an array [runs, `RUN`], padded with zeros."""
    rest = -len(numbers) % RUN
    if rest:
        numbers = np.concatenate([numbers, np.zeros(rest, np.float32)])
    return numbers.reshape(-1, RUN)


# Sums over each run of two tables of values, by a compiled kernel or by NumPy.


class RunSums(NamedTuple):
    """Sums over runs of two tables, float64[runs].

    They are those of the squared differences, of the squares of the reference, and of the other
    table's squares. `product` is the inner product of the tables, and `max_error` the largest
    magnitude of a difference.
    """

    error: F64
    squares: F64
    own_squares: F64
    product: float
    max_error: float


def compare_runs(own: F32, reference: F32) -> RunSums:
    """Return the sums of two tables of the same shape, [runs, 32].

    Differences are rounded to float32. If a value is not finite, its run's sums are not finite
    either, and `product` and `max_error` have no meaning.
    """
    kernel = run_comparer()
    if kernel is None:
        difference = own - reference
        return RunSums(
            _sum_squares(difference),
            _sum_squares(reference),
            _sum_squares(own),
            float(np.einsum("rn,rn->", own, reference, dtype=np.float64)),
            float(np.abs(difference).max(initial=0)),
        )
    sums = np.empty((3, len(own)), np.float64)
    product, most = kernel.compare(np.ascontiguousarray(own), np.ascontiguousarray(reference), sums)
    return RunSums(sums[0], sums[1], sums[2], product, most)


def _sum_squares(runs: F32) -> F64:
    found: F64 = np.vecdot(runs, runs).astype(np.float64)
    if found.size and not (found.min() > _LEAST and found.max() < inf):
        # Squares of such small or large values are outside the range of float32.
        wide = runs.astype(np.float64)
        found = np.vecdot(wide, wide)
    return found
