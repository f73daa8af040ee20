"""Detects a difference of low rank, as merging a LoRA adapter causes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.text.wording import percent
from weightctl.verify.compare.distance import allowed_error, expected_error
from weightctl.verify.compare.measure import read_both
from weightctl.verify.results import Explanation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairing import Pair, Pairing

    F64 = NDArray[np.float64]

# The number of evenly spaced rows to examine. Half of them determine the directions of the change;
# the other half must not have further directions.
_MOST_ROWS = 1024
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


def find_low_rank(pair: Pair, pairing: Pairing, found: Measured) -> Explanation | None:
    """Detect that the difference from the reference is a matrix of low rank."""
    del pairing
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
    places = np.unique(np.linspace(0, count - 1, min(count, _MOST_ROWS)).astype(np.int64)).tolist()
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
