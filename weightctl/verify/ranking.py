"""Order of tensors and matrices by how unusual they are, worst first."""

from __future__ import annotations

from math import inf, isfinite, isnan, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.verify.figures import MatrixGain, TensorError


def ratio_to_usual(value: float, usual: float) -> float:
    """Return a value as a multiple of the usual one; 1 if both are 0, infinite for NaN."""
    if isnan(value) or isnan(usual):
        return inf
    if value == usual:
        return 1.0
    return value / usual if usual > 0 else inf


def excess_of(error: TensorError) -> float:
    """Return a tensor's relative RMSE as a multiple of the one that its encodings explain."""
    return ratio_to_usual(error.relative_rmse, error.expected)


def badness_of(error: TensorError) -> tuple[bool, float, float, float]:
    """Return the sort key of a tensor: whether it is a problem, its excess, then its errors."""
    rmse, worst = (inf if isnan(each) else each for each in (error.relative_rmse, error.worst))
    return error.is_problem, excess_of(error), rmse, worst


def sort_worst_first(errors: Iterable[TensorError]) -> list[TensorError]:
    """Return the tensors sorted by `badness_of`, worst first.

    If none is a problem, they are sorted by decreasing error alone.
    """
    found = list(errors)
    if any(error.is_problem for error in found):
        return sorted(found, key=badness_of, reverse=True)
    return sorted(found, key=lambda error: badness_of(error)[2:], reverse=True)


def choose_title(errors: Iterable[TensorError]) -> str:
    """Return the title of a table with the first tensors that `sort_worst_first` returns."""
    is_wrong = any(error.is_problem for error in errors)
    return (
        "largest errors, relative to the expected errors"
        if is_wrong
        else "largest errors, all as expected"
    )


def sort_strangest_first(matrices: Iterable[MatrixGain]) -> list[MatrixGain]:
    """Return the matrices sorted by how far their gain is from the usual gain, farthest first."""

    def strangeness(matrix: MatrixGain) -> float:
        found = ratio_to_usual(matrix.gain, matrix.usual)
        return abs(log(found)) if isfinite(found) and found > 0 else inf

    return sorted(matrices, key=strangeness, reverse=True)
