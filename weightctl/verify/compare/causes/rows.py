"""Rows as the file that a tensor is in counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.steps.rows import RowOrder
from weightctl.verify.compare.distance import RUN
from weightctl.weights.derived import Made

if TYPE_CHECKING:
    from weightctl.verify.compare.pairs import Pair

__all__ = ["rows_of", "stored_rows"]


def rows_of(pair: Pair, runs: list[int]) -> list[int]:
    """Return the rows, of one index of the first dimension each, that runs of numbers begin in.

    They are counted as in the dialect that both are compared in.
    """
    shape = pair.tensor.info.shape
    width = pair.tensor.info.size // shape[0] if shape and shape[0] else 1
    return list(dict.fromkeys(run * RUN // width for run in runs))


def stored_rows(pair: Pair, rows: list[int]) -> list[int]:
    """Return the same rows, smallest first, as the file that the tensor is in counts them."""
    step = pair.tensor.step if isinstance(pair.tensor, Made) else None
    return sorted(step.order[row] for row in rows) if isinstance(step, RowOrder) else rows
