"""How far tensors are from others, in all and in each run of numbers: streamed, on all cores."""

from __future__ import annotations

from itertools import chain, islice
from math import lcm
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.steps.numbers import Plus
from weightctl.threads import Memory, shared_out
from weightctl.verify.compare.cost import decoded
from weightctl.verify.compare.distance import RUN, Measured, relative
from weightctl.verify.compare.tiles import Tile

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from threading import Event

    from weightctl.codecs.base import F32, U8
    from weightctl.verify.compare.cost import Side
    from weightctl.verify.compare.pairs import Pair
    from weightctl.weights.derived import Tensor

__all__ = ["measured", "measured_all", "numbers_from", "sample_of", "sampled"]

_PIECE = 1 << 20
# Numbers that are worked on at a time: they stay in a core's cache.
_TILE = 1 << 16
# So many numbers in so many places tell whether tensors have anything in common.
_SAMPLE, _SAMPLES = 1 << 11, 4


class _Piece(NamedTuple):
    pair: Pair
    start: int
    stop: int


def numbers_from(tensor: Tensor, start: int, count: int) -> F32:
    """Return some numbers of a tensor, whole blocks of it, in float32."""
    encoding = tensor.info.encoding
    first = start // encoding.block * encoding.block
    stop = min(-(-(start + count) // encoding.block) * encoding.block, tensor.info.size)
    raw = bytearray((stop - first) // encoding.block * encoding.size)
    tensor.read_into(first // encoding.block * encoding.size, memoryview(raw))
    numbers = decoded(np.frombuffer(raw, np.uint8), encoding)
    return numbers[start - first : start - first + count]


def measured(pair: Pair, limit: float) -> Measured:
    """Return how far a pair is apart."""
    (found,) = measured_all([pair], lambda _: limit)
    return found


def sample_of(tensor: Tensor) -> F32:
    """Return some numbers from all over a tensor."""
    size = tensor.info.size
    starts = dict.fromkeys(size * part // _SAMPLES // RUN * RUN for part in range(_SAMPLES))
    pieces = [numbers_from(tensor, start, min(_SAMPLE, size - start)) for start in starts]
    return np.concatenate(pieces)


def sampled(pair: Pair, sample: Callable[[Tensor], F32] = sample_of) -> float:
    """Return the relative RMSE of some numbers of a pair, from all over it."""
    own, reference = (sample(each).astype(np.float64) for each in (pair.tensor, pair.reference))
    error, squares = float(np.sum((own - reference) ** 2)), float(np.vdot(reference, reference))
    return relative(error, squares)


def measured_all(
    pairs: Sequence[Pair],
    limit: Callable[[Pair], float],
    progress: Callable[[float], object] | None = None,
) -> Generator[Measured, None, None]:
    """Yield how far each pair, of one shape and of numbers both, is apart.

    `limit` says how many times what encodings should cost a run may be off. A few MB are held for
    each thread. Raises `FormatError` where a file cannot be read.
    """
    total = sum(pair.tensor.info.size for pair in pairs) or 1
    memory = Memory()

    def measure(piece: _Piece, ended: Event) -> Measured:
        return Measured() if ended.is_set() else _of_piece(piece, limit(piece.pair), memory)

    done = 0
    with shared_out(measure, chain.from_iterable(map(_pieces, pairs))) as made:
        for pair in pairs:
            found = Measured()
            for part in islice(made, -(-pair.tensor.info.size // _step(pair))):
                found.add(part)
                done += part.count
                if progress is not None:
                    progress(done / total)
            yield found


def _pieces(pair: Pair) -> Iterator[_Piece]:
    size, step = pair.tensor.info.size, _step(pair)
    for start in range(0, size, step):
        yield _Piece(pair, start, min(start + step, size))


def _step(pair: Pair) -> int:
    unit = _unit(pair)
    return _PIECE // unit * unit


def _unit(pair: Pair) -> int:
    return lcm(RUN, pair.tensor.info.encoding.block, pair.reference.info.encoding.block)


def _of_piece(piece: _Piece, limit: float, memory: Memory) -> Measured:
    pair, total = piece.pair, Measured()
    sides = pair.sides
    raws = [
        _read(tensor, piece.start, memory.room(use, _nbytes(tensor, piece)))
        for use, tensor in (("own", pair.tensor), ("reference", pair.reference))
    ]
    unit = _unit(pair)
    step = max(_TILE // unit, 1) * unit
    is_shifted = _adds(pair)
    for start in range(0, piece.stop - piece.start, step):
        count = min(step, piece.stop - piece.start - start)
        parts = [_part(raw, side, start, count) for raw, side in zip(raws, sides, strict=True)]
        tile = Tile(parts, sides, piece.start + start, count, is_shifted)
        # Each thread has a state of its own; what is not finite is looked at, not warned of.
        with np.errstate(all="ignore"):
            total.add(tile.measured(limit))
    return total


def _adds(pair: Pair) -> bool:
    """Whether a number was added to one side, whose rounding is not relative to what is left."""
    steps = {*pair.tensor.origin.steps, *pair.reference.origin.steps}
    return not steps.isdisjoint({str(Plus(1.0)), str(Plus(-1.0))})


def _nbytes(tensor: Tensor, piece: _Piece) -> int:
    encoding = tensor.info.encoding
    return (piece.stop - piece.start) // encoding.block * encoding.size


def _read(tensor: Tensor, start: int, room: memoryview) -> U8:
    encoding = tensor.info.encoding
    tensor.read_into(start // encoding.block * encoding.size, room)
    return np.frombuffer(room, np.uint8)


def _part(raw: U8, side: Side, start: int, count: int) -> U8:
    block, size = side.encoding.block, side.encoding.size
    return raw[start // block * size : (start + count) // block * size]
