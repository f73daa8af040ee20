"""Detects full-precision values that were once stored in an encoding with fewer bits."""

from __future__ import annotations

from collections import Counter
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs import can_encode
from weightctl.dtype import ENCODINGS
from weightctl.verify.compare.distance import RUN, PairSide
from weightctl.verify.compare.measure import read_values
from weightctl.verify.results import Explanation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.codecs.base import F32
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairing import Pair, Pairing
    from weightctl.weights.derived import ReadableTensor


# The encodings to try: these, which round each value by itself, and encodings with larger blocks.
_ROUNDED = {"F16", "BF16", "F8_E4M3", "F8_E5M2"}
_LEAST_BLOCK = 16
# The size of the sample: values of a row, values in total, and rows.
_OF_ROW, _MOST_NUMBERS, _MOST_ROWS = 1024, 8192, 64
# If values were quantized before, encoding them again causes less than this fraction of the error
# that encoding the reference causes: about a third for bf16 and Q8_0. For noise, it causes all of
# the error.
_FIXED = 0.5
# The difference from the reference must be between these multiples of the encoding's error.
_NEAREST, _FARTHEST = 0.5, 2.0
# The largest factor between the error of an encoding and its typical error; encodings outside this
# range are not tried.
_UNUSUAL = 8.0
# The largest number of tensors that are examined for the whole checkpoint.
_MOST_TENSORS = 48


class OnceQuantized(NamedTuple):
    """The former encodings of the tensors of two checkpoints, most frequent first."""

    own: Sequence[str]
    reference: Sequence[str]


def find_once_quantized(pairs: Sequence[Pair]) -> OnceQuantized:
    """Return the former encodings of both sides, from a sample of the matrices."""
    matrices = [pair for pair in pairs if len(pair.tensor.info.shape) > 1]
    looked_at = matrices[:: -(-len(matrices) // _MOST_TENSORS) or 1]
    own = Counter(map(find_former_encoding, looked_at))
    reference = Counter(find_former_encoding(exchange_sides(pair)) for pair in looked_at)
    return OnceQuantized(_name_encodings(own), _name_encodings(reference))


def _name_encodings(found: Counter[str]) -> list[str]:
    return [name for name, _ in found.most_common() if name]


def find_former_encoding(pair: Pair) -> str:
    """Return the name of the former encoding of a full-precision tensor; empty if there is none.

    Two conditions must hold: the tensor's difference from the reference is about the error of that
    encoding, and encoding the tensor again changes it less than that.
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
    """Return the pair with the tensor and the reference exchanged."""
    return pair._replace(
        tensor=pair.reference,
        reference=pair.tensor,
        bits=pair.reference_bits,
        reference_bits=pair.bits,
    )


def _list_coarser(side: PairSide, width: int) -> Iterator[PairSide]:
    """Yield the encodings to try: those with fewer bits that can store rows of `width` values."""
    for encoding in ENCODINGS.values():
        is_meant = encoding.block >= _LEAST_BLOCK or encoding.name in _ROUNDED
        is_made = can_encode(encoding) and not encoding.needs_importance
        if is_meant and width % encoding.block == 0 and is_made:
            bits = encoding.size * 8 / encoding.block
            if bits < side.bits:
                yield PairSide(encoding, bits)


def _sample_values(tensor: ReadableTensor) -> F32:
    """Return the first values of evenly spaced rows of a tensor, as a flat array."""
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
    """Return the median of the runs' relative RMSEs, which a few huge values do not change."""
    difference = own.astype(np.float64) - wanted
    runs = [
        each[: len(each) // RUN * RUN].reshape(-1, RUN).astype(np.float64)
        for each in (difference, wanted)
    ]
    error, squares = (np.vecdot(each, each) for each in runs)
    found = error[squares > 0] / squares[squares > 0]
    return sqrt(float(np.median(found))) if found.size else 0.0


_MOST_NAMED = 3


def find_dequantized(pair: Pair, pairing: Pairing, found: Measured) -> Explanation | None:
    """Detect that a tensor or its reference was once quantized.

    The text lists the former encodings of the whole checkpoint, so that all such tensors have the
    same cause.
    """
    if not _may_be(found):
        return None
    view = pairing.seen_in("gguf", pair)
    if view is None:
        return None
    if name := find_former_encoding(view):
        return _make_cause("the values", [*pairing.once_quantized.own, name])
    if name := find_former_encoding(exchange_sides(view)):
        return _make_cause("the values of the reference", [*pairing.once_quantized.reference, name])
    return None


def _may_be(found: Measured) -> bool:
    """Whether most runs differ, but not by more than their size; a quick first test."""
    return found.runs_unequal * 2 > found.runs and found.error < found.squares


def _make_cause(whose: str, encodings: Sequence[str]) -> Explanation:
    names = " and ".join(list(dict.fromkeys(encodings))[:_MOST_NAMED])
    return Explanation(
        "dequantized",
        f"{whose} look dequantized: they were stored in {names} before, and the lost "
        "precision cannot be restored",
    )
