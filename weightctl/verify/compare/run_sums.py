"""Sums over each run of two tables of values, by a compiled kernel or by NumPy."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.kernels import run_comparer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32

    F64 = NDArray[np.float64]

# Sums of squares at least this large are exact enough in float32.
_LEAST = 1e-30


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
