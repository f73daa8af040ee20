"""Which tensors and matrices are the worst, next to what they should be."""

from __future__ import annotations

from math import inf, isfinite, isnan, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.verify.figures import MatrixGain, TensorError

__all__ = ["badness", "excess", "ratio", "strangest", "title_of", "worst_first"]


def ratio(value: float, usual: float) -> float:
    """Return how many times the usual a value is; 1 where both are 0, infinite for NaN."""
    if isnan(value) or isnan(usual):
        return inf
    if value == usual:
        return 1.0
    return value / usual if usual > 0 else inf


def excess(error: TensorError) -> float:
    """Return how many times what its encoding should cost a tensor is off."""
    return ratio(error.relative_rmse, error.expected)


def badness(error: TensorError) -> tuple[bool, float, float, float]:
    """Return what the worst tensor has most of: being a problem, its excess, then its error."""
    rmse, worst = (inf if isnan(each) else each for each in (error.relative_rmse, error.worst))
    return error.is_problem, excess(error), rmse, worst


def worst_first(errors: Iterable[TensorError]) -> list[TensorError]:
    """Return tensors, the furthest from usual first; of usual ones, those of the largest error."""
    found = list(errors)
    if any(error.is_problem for error in found):
        return sorted(found, key=badness, reverse=True)
    return sorted(found, key=lambda error: badness(error)[2:], reverse=True)


def title_of(errors: Iterable[TensorError]) -> str:
    """Return what a table of the first of `worst_first` is called."""
    is_wrong = any(error.is_problem for error in errors)
    return "furthest from what is usual" if is_wrong else "largest errors, all usual"


def strangest(matrices: Iterable[MatrixGain]) -> list[MatrixGain]:
    """Return matrices, the one whose gain is farthest from usual first."""

    def strangeness(matrix: MatrixGain) -> float:
        found = ratio(matrix.gain, matrix.usual)
        return abs(log(found)) if isfinite(found) and found > 0 else inf

    return sorted(matrices, key=strangeness, reverse=True)
