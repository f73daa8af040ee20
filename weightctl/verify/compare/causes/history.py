"""Detects what was done to a model before: quantization, or a merged adapter of low rank."""

from __future__ import annotations

from collections import Counter
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs import can_encode
from weightctl.dtype import ENCODINGS
from weightctl.text.wording import percent
from weightctl.verify.compare.distance import allowed_error, expected_error, read_both
from weightctl.verify.compare.pairing import RUN, PairSide
from weightctl.verify.results import Explanation
from weightctl.weights.steps.numbers import read_floats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairing import Pair, Pairing
    from weightctl.weights.derived import ReadableTensor

    F64 = NDArray[np.float64]


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


def _list_former(pairing: Pairing, side: str) -> Sequence[str]:
    """Return the former encodings of a side's tensors, from a sample of the matrices.

    `side` is `own` or `reference`. The most frequent encoding comes first. The pairing caches them.
    """
    if side not in pairing.former:
        views = [view for pair in pairing.pairs if (view := pairing.seen_in("gguf", pair))]
        matrices = [view for view in views if len(view.tensor.info.shape) > 1]
        looked_at = matrices[:: -(-len(matrices) // _MOST_TENSORS) or 1]
        found = Counter(
            find_former_encoding(view if side == "own" else view.exchanged) for view in looked_at
        )
        pairing.former[side] = [name for name, _ in found.most_common() if name]
    return pairing.former[side]


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
    pieces = [read_floats(tensor, start, count) for start in starts]
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
    # Most runs must differ, but not by more than their size.
    if found.runs_unequal * 2 <= found.runs or found.error >= found.squares:
        return None
    view = pairing.seen_in("gguf", pair)
    if view is None:
        return None
    if name := find_former_encoding(view):
        return _make_cause("the values", [*_list_former(pairing, "own"), name])
    if name := find_former_encoding(view.exchanged):
        return _make_cause(
            "the values of the reference", [*_list_former(pairing, "reference"), name]
        )
    return None


def _make_cause(whose: str, encodings: Sequence[str]) -> Explanation:
    names = " and ".join(list(dict.fromkeys(encodings))[:_MOST_NAMED])
    return Explanation(
        "dequantized",
        f"{whose} look dequantized: they were stored in {names} before, and the lost "
        "precision cannot be restored",
    )


# A difference of low rank, as merging a LoRA adapter causes.


# The number of evenly spaced rows to examine. Half of them determine the directions of the change;
# the other half must not have further directions.
_MOST_EXAMINED = 1024
_MOST_RANK = 128
# A rank is low if it is at most this fraction of the examined rows, and of the columns.
_LOW = 4
# The fraction of the squared difference that a low rank must cover. A random change in all
# directions has a small fraction of it in a few directions.
_LEAST_SHARE = 0.8
# The squares that may remain, as a multiple of the encodings' squared error.
_REST = 1.5
# A change of a few rows or columns also has a low rank. The change must affect more of them than
# this multiple of its rank.
_SPREAD = 2


class _Fit(NamedTuple):
    """The rank of a change, and the fraction of its squares that this rank covers."""

    rank: int
    share: float


def find_low_rank(pair: Pair, _pairing: Pairing, found: Measured) -> Explanation | None:
    """Detect that the difference from the reference is a matrix of low rank."""
    shape = pair.tensor.info.shape
    if len(shape) != 2 or found.nonfinite:
        return None
    own, reference = _sample_rows(pair)
    change = own - reference
    squares = float(np.vdot(reference[1::2], reference[1::2]))
    fit = _fit_rank(
        change,
        usual=_REST * expected_error(pair, found) ** 2 * squares,
        most=allowed_error(pair, found) ** 2 * squares,
    )
    if fit is None:
        return None
    return Explanation(
        "low_rank",
        f"a matrix of rank {fit.rank} was added, which is {percent(fit.share)} of the squared "
        "difference: a LoRA adapter was merged into only one of A and B",
    )


def _sample_rows(pair: Pair) -> tuple[F64, F64]:
    """Return evenly spaced rows of both tensors, each as [rows, columns]."""
    count, width = pair.tensor.info.shape
    places = np.unique(
        np.linspace(0, count - 1, min(count, _MOST_EXAMINED)).astype(np.int64)
    ).tolist()
    rows = [read_both(pair, row * width, width) for row in places]
    own, reference = (np.stack(each).astype(np.float64) for each in zip(*rows, strict=True))
    return own, reference


def _fit_rank(change: F64, *, usual: float, most: float) -> _Fit | None:
    """Return the rank of a change, [rows, columns]; None if it is not low.

    `usual` and `most` are the sums of squares that usually and at most remain unexplained in every
    second row.
    """
    given, others = change[::2], change[1::2]
    size = min(len(others) // _LOW, change.shape[1] // _LOW, _MOST_RANK)
    total = float(np.vdot(others, others))
    if size < 1 or total <= most:
        return None
    held = np.cumsum(np.square(others @ _find_directions(given, size)).sum(axis=0))
    rank = int(np.searchsorted(held, total - usual)) + 1
    if rank > len(held):
        return None
    left = max(total - float(held[rank - 1]), 0.0)
    share = 1 - left / total
    least = _SPREAD * rank
    if (
        left > most
        or share < _LEAST_SHARE
        or min(_measure_spread(change), _measure_spread(change.T)) <= least
    ):
        return None
    return _Fit(rank, share)


def _find_directions(rows: F64, size: int) -> F64:
    """Return an orthonormal basis of the principal directions of some rows, strongest first.

    The basis has the shape [columns, at most `size`].
    """
    values, vectors = np.linalg.eigh(rows @ rows.T)
    largest = np.argsort(values)[::-1][:size]
    kept = values[largest] > values[largest[0]] * np.finfo(np.float64).eps * len(rows)
    spans = rows.T @ vectors[:, largest[kept]]
    made: F64 = np.linalg.qr(spans)[0]
    return made


def _measure_spread(change: F64) -> float:
    """Return the effective number of rows that a change affects (the participation ratio)."""
    squares = np.vecdot(change, change)
    return float(np.sum(squares) ** 2 / np.sum(np.square(squares)))
