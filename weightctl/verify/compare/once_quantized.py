"""Detection of values of full precision that were in a coarser encoding once."""

from __future__ import annotations

from collections import Counter
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs import can_encode
from weightctl.dtype import ENCODINGS
from weightctl.verify.compare.cost import PairSide
from weightctl.verify.compare.distance import RUN
from weightctl.verify.compare.measure import read_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.codecs.base import F32
    from weightctl.verify.compare.pairs import Pair
    from weightctl.weights.derived import ReadableTensor

__all__ = ["OnceQuantized", "exchange_sides", "find_former_encoding", "find_once_quantized"]

# What has blocks, and what rounds each number by itself.
_ROUNDED = {"F16", "BF16", "F8_E4M3", "F8_E5M2"}
_LEAST_BLOCK = 16
# Numbers that are looked at: so many of a row at most, of so many rows.
_OF_ROW, _MOST_NUMBERS, _MOST_ROWS = 1024, 8192, 64
# What was through an encoding loses less than this part of what numbers at large lose in it. What
# bf16 rounds of Q8_0 is a third of that; noise loses all of it.
_FIXED = 0.5
# How many times what the encoding costs the numbers may be apart from the reference's.
_NEAREST, _FARTHEST = 0.5, 2.0
# How many times more or less than is usual an encoding may cost some numbers.
_UNUSUAL = 8.0
# All other tensors are like one of so many.
_MOST_TENSORS = 48


class OnceQuantized(NamedTuple):
    """The former encodings of the tensors of two checkpoints, the commonest of each first."""

    own: Sequence[str]
    reference: Sequence[str]


def find_once_quantized(pairs: Sequence[Pair]) -> OnceQuantized:
    """Return what tensors of either side were in once, as far as some of them tell."""
    matrices = [pair for pair in pairs if len(pair.tensor.info.shape) > 1]
    looked_at = matrices[:: -(-len(matrices) // _MOST_TENSORS) or 1]
    own = Counter(map(find_former_encoding, looked_at))
    reference = Counter(find_former_encoding(exchange_sides(pair)) for pair in looked_at)
    return OnceQuantized(_name_encodings(own), _name_encodings(reference))


def _name_encodings(found: Counter[str]) -> list[str]:
    return [name for name, _ in found.most_common() if name]


def find_former_encoding(pair: Pair) -> str:
    """Return the encoding that a tensor of full precision was in, empty where it was in none.

    It must be as far from the reference as that encoding makes it.
    """
    side = pair.sides[0]
    shape = pair.tensor.info.shape
    is_plain = side.encoding.block == 1 and not side.is_apart
    if not is_plain or len(shape) < 2 or shape != pair.reference.info.shape:
        return ""
    own, wanted = (_sample_values(tensor) for tensor in (pair.tensor, pair.reference))
    if not (own.size and np.isfinite(own).all() and np.isfinite(wanted).all()):
        return ""
    apart = _measure_apart(own, wanted)
    if apart == 0:
        return ""
    found: list[tuple[float, float, str]] = []
    for coarser in _list_coarser(side, shape[-1]):
        if not coarser.typical / _UNUSUAL < apart < coarser.typical * _UNUSUAL:
            continue
        cost = _measure_lost(coarser, wanted)
        if not _NEAREST * cost < apart < _FARTHEST * cost:
            continue
        left = _measure_lost(coarser, own)
        if left < _FIXED * cost:
            found.append((left / cost, coarser.bits, coarser.encoding.name))
    return min(found)[2] if found else ""


def exchange_sides(pair: Pair) -> Pair:
    """Return the pair with the reference for the tensor."""
    return pair._replace(
        tensor=pair.reference,
        reference=pair.tensor,
        bits=pair.reference_bits,
        reference_bits=pair.bits,
    )


def _list_coarser(side: PairSide, width: int) -> Iterator[PairSide]:
    """Yield the encodings of fewer bits that rows of a width can be in."""
    for encoding in ENCODINGS.values():
        is_meant = encoding.block >= _LEAST_BLOCK or encoding.name in _ROUNDED
        if is_meant and width % encoding.block == 0 and can_encode(encoding):
            bits = encoding.size * 8 / encoding.block
            if bits < side.bits:
                yield PairSide(encoding, bits)


def _sample_values(tensor: ReadableTensor) -> F32:
    """Return numbers of rows from all over a tensor, whole blocks of each."""
    width = tensor.info.shape[-1]
    rows = tensor.info.size // width if width else 0
    count = min(width, _OF_ROW)
    places = min(rows, _MOST_ROWS, max(_MOST_NUMBERS // max(count, 1), 1))
    starts = [rows * place // places * width for place in range(places)]
    pieces = [read_values(tensor, start, count) for start in starts]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def _measure_lost(side: PairSide, numbers: F32) -> float:
    through = side.through(numbers)
    return 0.0 if through is None else _measure_apart(through, numbers)


def _measure_apart(own: F32, wanted: F32) -> float:
    """Return the relative RMSE of a run that half of all are above: a huge number is in one."""
    difference = own.astype(np.float64) - wanted
    runs = [
        each[: len(each) // RUN * RUN].reshape(-1, RUN).astype(np.float64)
        for each in (difference, wanted)
    ]
    error, squares = (np.vecdot(each, each) for each in runs)
    found = error[squares > 0] / squares[squares > 0]
    return sqrt(float(np.median(found))) if found.size else 0.0
