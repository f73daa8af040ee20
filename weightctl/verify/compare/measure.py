"""Measures errors between tensors, in total and for each run, in chunks and in parallel."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain, islice
from math import lcm
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.system.threads import Memory, map_in_threads
from weightctl.verify.compare.distance import (
    RUN,
    Measured,
    PairSide,
    decode_values,
    relative_root,
    run_limit,
)
from weightctl.verify.compare.tile import Tile
from weightctl.weights.steps.numbers import Plus

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from threading import Event

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8
    from weightctl.verify.compare.pairing import Pair
    from weightctl.verify.request import Request
    from weightctl.weights.derived import ReadableTensor

    F64 = NDArray[np.float64]
    Bools = NDArray[np.bool_]

_PIECE = 1 << 20
# The number of values to process at once, so that they stay in a core's cache.
_TILE = 1 << 16
# A sample of four ranges of 2048 values shows whether two tensors are related.
_SAMPLE, _SAMPLES = 1 << 11, 4
# Each sample takes about 32 KB.
_MOST_SAMPLES_KEPT = 512


class _Piece(NamedTuple):
    pair: Pair
    start: int
    stop: int


def read_values(tensor: ReadableTensor, start: int, count: int) -> F32:
    """Return `count` of a tensor's values, from `start` on, as float32.

    Whole blocks are read and decoded; the range may start and end within blocks.
    """
    encoding = tensor.info.encoding
    first = start // encoding.block * encoding.block
    stop = min(-(-(start + count) // encoding.block) * encoding.block, tensor.info.size)
    raw = bytearray((stop - first) // encoding.block * encoding.size)
    tensor.read_into(first // encoding.block * encoding.size, memoryview(raw))
    numbers = decode_values(np.frombuffer(raw, np.uint8), encoding)
    return numbers[start - first : start - first + count]


def read_both(pair: Pair, start: int, count: int) -> tuple[F32, F32]:
    """Return `count` values of both tensors of a pair, from `start` on, as float32."""
    return read_values(pair.tensor, start, count), read_values(pair.reference, start, count)


def measure_pair(pair: Pair, *, in_runs: bool = True) -> Measured:
    """Return the distance between the tensors of a pair."""
    (found,) = measure_pairs([pair], in_runs=in_runs)
    return found


def take_sample(tensor: ReadableTensor) -> F32:
    """Return a sample of a tensor's values, from ranges that are evenly spaced."""
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
    request: Request | None = None,
) -> Generator[Measured, None, None]:
    """Yield the distance of each pair, whose tensors must have the same shape.

    The costs of encodings, and the runs beyond `run_limit`, are only measured if `in_runs` is set.
    Each thread uses a few megabytes of memory. If `request` has workers, they measure the pairs,
    which must be pairs of the request's pairing, always with `in_runs`. Raises `FormatError` if a
    file cannot be read.
    """
    total = sum(pair.tensor.info.size for pair in pairs) or 1
    pieces = chain.from_iterable(map(_cut_pieces, pairs))
    done = 0
    with _measure_pieces(pieces, in_runs=in_runs, request=request) as made:
        for pair in pairs:
            found = Measured()
            for part in islice(made, -(-pair.tensor.info.size // _piece_length(pair))):
                found.add(part)
                done += part.count
                if progress is not None:
                    progress(done / total)
            yield found


@contextmanager
def _measure_pieces(
    pieces: Iterable[_Piece],
    *,
    in_runs: bool,
    request: Request | None = None,
    threads: int | None = None,
) -> Generator[Iterator[Measured]]:
    """Yield the distances of pieces, in order."""
    if request is not None and request.workers is not None:
        places = {id(pair): place for place, pair in enumerate(request.pairing.pairs)}
        units = [PieceUnit(places[id(pair)], start, stop) for pair, start, stop in pieces]
        sizes = [_count_unit_bytes(request, unit) for unit in units]
        yield request.workers.map(_measure_units, units, sizes, lambda _: None)
        return
    memory = Memory()

    def measure(piece: _Piece, ended: Event) -> Measured:
        limit = run_limit(piece.pair) if in_runs else None
        return Measured() if ended.is_set() else _measure_piece(piece, limit, memory)

    with map_in_threads(measure, pieces, threads=threads) as made:
        yield made


class PieceUnit(NamedTuple):
    """A range of elements of a pair, which is given by its index in the pairing, for workers."""

    place: int
    start: int
    stop: int


def _count_unit_bytes(request: Request, unit: PieceUnit) -> int:
    pair = request.pairing.pairs[unit.place]
    piece = _Piece(pair, unit.start, unit.stop)
    return _count_bytes(pair.tensor, piece) + _count_bytes(pair.reference, piece)


def _measure_units(request: Request, units: Sequence[PieceUnit]) -> list[Measured]:
    pairs = request.pairing.pairs
    pieces = (_Piece(pairs[place], start, stop) for place, start, stop in units)
    with _measure_pieces(pieces, in_runs=True, threads=1) as made:
        return list(made)


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
        # NumPy's error state is per thread. Non-finite values are counted, so warnings are off.
        with np.errstate(all="ignore"):
            total.add(tile.measure(limit))
    return total


def _adds(pair: Pair) -> bool:
    """Whether 1 was added to or subtracted from a side, so that its rounding is absolute."""
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
    """A cache of samples of the most recently used tensors, by object identity."""

    def __init__(self) -> None:
        # The tensor is kept too, so that its id is not reused.
        self._kept: dict[int, tuple[ReadableTensor, F32]] = {}

    def of(self, tensor: ReadableTensor) -> F32:
        """Return the sample that `take_sample` takes of a tensor."""
        kept = self._kept.pop(id(tensor), None) or (tensor, take_sample(tensor))
        self._kept[id(tensor)] = kept
        if len(self._kept) > _MOST_SAMPLES_KEPT:
            del self._kept[next(iter(self._kept))]
        return kept[1]
