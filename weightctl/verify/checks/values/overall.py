"""Explains differences of all tensors at once: two steps of one training, or unrelated weights."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from weightctl.text.wording import number, percent
from weightctl.verify.figures import describe_differences, describe_range, list_unequal
from weightctl.verify.results import Explanation, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.verify.figures import TensorError

__all__ = ["explain_overall", "list_differences", "list_outliers"]

# The least number of matrices that are enough to say something about a whole model.
_FEWEST = 4
# The part of the matrices that have to differ, and the part that has to differ by similar amounts.
_MOST, _SIMILAR = 0.9, 0.8
_SPREAD = 5.0
# Training changes a matrix by less than this relative RMSE, and by more than the encodings do.
_TRAINED = 0.5
_TRAINED_QUANTIZED = 0.1
_ABOVE_COST = 3.0
# Matrices without relation differ by more, and their cosine is smaller.
_UNRELATED, _UNRELATED_COSINE = 0.75, 0.5


def explain_overall(
    errors: Sequence[TensorError], explained: int, *, is_quantized: bool
) -> Problem | None:
    """Return the one problem that explains differences of nearly all tensors, else None.

    `explained` is the number of tensors whose difference already has a cause.
    """
    matrices = [error for error in errors if len(error.shape) > 1]
    if len(matrices) < _FEWEST or explained > (1 - _MOST) * len(errors):
        return None
    unequal = list_unequal(matrices)
    if len(unequal) < _MOST * len(matrices):
        return None
    if _are_unrelated(unequal):
        cause = Explanation("different_models", "B is not the original of A")
        text = (
            "A and B are different models: their values have no relation, "
            f"{describe_range(unequal)}"
        )
        return Problem(where="", text=text, cause=cause)
    if _are_trained(unequal, _TRAINED_QUANTIZED if is_quantized else _TRAINED):
        cause = Explanation("training_steps", "A and B were trained for different numbers of steps")
        text = (
            "A and B look like two training steps of one model, or a model and its fine-tune: "
            f"{describe_differences(errors)}"
        )
        return Problem(where="", text=text, cause=cause)
    return None


def list_outliers(errors: Sequence[TensorError]) -> set[str]:
    """Return the names of tensors that differ by far more than most."""
    limit = _SPREAD * median(error.relative_rmse for error in errors)
    return {error.name for error in errors if error.relative_rmse > limit}


def list_differences(errors: Sequence[TensorError]) -> list[Problem]:
    """Return the tensors that have other values than the reference's, largest difference first."""
    unequal = sorted(list_unequal(errors), key=lambda each: each.relative_rmse, reverse=True)
    return [Problem(where=error.name, text=_describe_difference(error)) for error in unequal]


def _describe_difference(error: TensorError) -> str:
    rmse, most = percent(error.relative_rmse), number(error.max_error)
    return f"relative RMSE {rmse}, largest difference {most}"


def _are_unrelated(errors: Sequence[TensorError]) -> bool:
    are_far = [error.relative_rmse > _UNRELATED for error in errors]
    are_apart = [abs(error.cosine) < _UNRELATED_COSINE for error in errors]
    return sum(map(all, zip(are_far, are_apart, strict=True))) >= _MOST * len(errors)


def _are_trained(errors: Sequence[TensorError], limit: float) -> bool:
    """Whether most tensors differ by similar, small amounts that the encodings do not explain."""
    middle = median(error.relative_rmse for error in errors)
    similar = [
        error for error in errors if middle / _SPREAD <= error.relative_rmse <= middle * _SPREAD
    ]
    is_above_cost = median(_times_cost(error) for error in errors) >= _ABOVE_COST
    return len(similar) >= _SIMILAR * len(errors) and is_above_cost and middle < limit


def _times_cost(error: TensorError) -> float:
    return error.relative_rmse / max(error.expected, 1e-12)
