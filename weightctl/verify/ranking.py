"""Order of tensors and matrices: the worst first, next to what they should be."""

from __future__ import annotations

from math import inf, isfinite, isnan, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.verify.figures import MatrixGain, TensorError

__all__ = [
    "badness_of",
    "choose_title",
    "excess_of",
    "ratio_to_usual",
    "sort_strangest_first",
    "sort_worst_first",
]


def ratio_to_usual(value: float, usual: float) -> float:
    """Return how many times the usual a value is; 1 where both are 0, infinite for NaN."""
    if isnan(value) or isnan(usual):
        return inf
    if value == usual:
        return 1.0
    return value / usual if usual > 0 else inf


def excess_of(error: TensorError) -> float:
    """Return how many times what its encoding should cost a tensor is off."""
    return ratio_to_usual(error.relative_rmse, error.expected)


def badness_of(error: TensorError) -> tuple[bool, float, float, float]:
    """Return what the worst tensor has most of: being a problem, its excess, then its error."""
    rmse, worst = (inf if isnan(each) else each for each in (error.relative_rmse, error.worst))
    return error.is_problem, excess_of(error), rmse, worst


def sort_worst_first(errors: Iterable[TensorError]) -> list[TensorError]:
    """Return tensors, the furthest from usual first; of usual ones, those of the largest error."""
    found = list(errors)
    if any(error.is_problem for error in found):
        return sorted(found, key=badness_of, reverse=True)
    return sorted(found, key=lambda error: badness_of(error)[2:], reverse=True)


def choose_title(errors: Iterable[TensorError]) -> str:
    """Return what a table of the first of `sort_worst_first` is called."""
    is_wrong = any(error.is_problem for error in errors)
    return (
        "largest errors, relative to the expected errors"
        if is_wrong
        else "largest errors, all as expected"
    )


def sort_strangest_first(matrices: Iterable[MatrixGain]) -> list[MatrixGain]:
    """Return matrices, the one whose gain is farthest from usual first."""

    def strangeness(matrix: MatrixGain) -> float:
        found = ratio_to_usual(matrix.gain, matrix.usual)
        return abs(log(found)) if isfinite(found) and found > 0 else inf

    return sorted(matrices, key=strangeness, reverse=True)
