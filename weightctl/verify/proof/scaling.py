"""Matrices whose columns or rows were multiplied before they were quantized, as AWQ does.

AWQ multiplies the columns of a matrix, and divides the norm before it, or the rows of the matrix
before it, by the same factors, so that the model computes the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.verify.compare.distance import read_both, sample_limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from weightctl.verify.compare.pairing import Pair

    F64 = NDArray[np.float64]

# The rows from which factors of columns are estimated, and the rounds of the estimate.
_ROWS, _ROUNDS = 256, 4
# Factors are estimated with about this relative error; if they differ less, there are none.
_ALIKE = 0.05
# Factors beyond these quantiles are replaced by them: AWQ has a factor for each column.
_KEPT = 0.01, 0.99
_LEAST = 1e-30


class Scaling(NamedTuple):
    """The factors of the columns of a matrix, shape (n,), as far as they are known."""

    pair: Pair
    columns: F64


def find_scaling(pair: Pair) -> Scaling | None:
    """Return the factors that the columns and rows of a matrix were multiplied by; None if none.

    Only a sample of rows is read. Factors explain the difference if what is left of it is within
    the error of the encoding in each row.
    """
    shape = pair.tensor.info.shape
    if len(shape) != 2:
        return None
    places = sorted({shape[0] * each // _ROWS for each in range(_ROWS)})
    read = [read_both(pair, row * shape[1], shape[1]) for row in places]
    own, source = (np.array(side, np.float64) for side in zip(*read, strict=True))
    rows, columns = np.ones((len(places), 1)), np.ones((1, shape[1]))
    with np.errstate(all="ignore"):
        for _ in range(_ROUNDS):
            part = source * rows
            columns = np.sum(own * part, 0, keepdims=True) / (np.sum(part * part, 0) + _LEAST)
            part = source * columns
            rows = np.sum(own * part, 1, keepdims=True) / (
                np.sum(part * part, 1, keepdims=True) + _LEAST
            )
        made = source * rows * columns
        left = np.max(np.sum((own - made) ** 2, 1) / (np.sum(made**2, 1) + _LEAST))
        spread = _find_spread(columns) + _find_spread(rows)
    if not left <= sample_limit(pair) ** 2 or not spread > _ALIKE:
        return None
    return Scaling(pair, columns[0] * np.median(rows))


def _find_spread(factors: F64) -> float:
    """Return the relative standard deviation of factors, without a few: these are damage."""
    kept = np.clip(factors, *np.quantile(factors, _KEPT))
    return float(np.std(kept) / np.abs(np.mean(kept)))


def is_divided(norm: Pair, scalings: Iterable[Scaling]) -> bool:
    """Whether a norm is the source's, divided by the factors of the columns of a matrix."""
    read = read_both(norm, 0, norm.tensor.info.size)
    own, source = (side.astype(np.float64) for side in read)
    for each in scalings:
        if each.pair.layer == norm.layer and each.columns.shape == own.shape:
            with np.errstate(all="ignore"):
                ratio = own * each.columns / source
            if np.median(np.abs(ratio / np.median(ratio) - 1)) < _ALIKE:
                return True
    return False
