"""Collects the sums of squares of what weights are multiplied with, by tensors in GGUF."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.engine.products import SquaresObserver
from weightctl.errors import EngineError
from weightctl.formats.imatrix.sums import ColumnSums

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from weightctl.calibrate.measured_weights import MeasuredWeight

__all__ = ["SumsCollector"]


class SumsCollector:
    """Adds the squares of the left operands of products, for the weights that are measured.

    `observe` is for `InferenceSession.load`, and `entries` has the sums by the names of the tensors
    in GGUF.
    """

    def __init__(self, measured: Mapping[str, MeasuredWeight]) -> None:
        self._measured = measured
        self.entries: dict[str, ColumnSums] = {}
        self.observe = SquaresObserver(measured, self._add)

    def _add(self, name: str, squares: NDArray[np.float64], rows: int) -> None:
        """Add the sums of squares of `rows` vectors that a weight is multiplied with.

        Raises `EngineError` if they are not finite.
        """
        weight = self._measured[name]
        if weight.order is not None:
            squares = squares[list(weight.order)]
        if not np.isfinite(squares).all():
            raise EngineError(
                f"`{weight.tensor}` is multiplied with values that are NaN or too large",
                hint="the model or the file is damaged; check it with `weightctl verify`",
            )
        entry = self.entries.get(weight.tensor)
        if entry is None:
            shape = (weight.matrices, len(squares))
            entry = ColumnSums(np.zeros(shape), np.zeros(weight.matrices, np.int64))
            self.entries[weight.tensor] = entry
        entry.squares[weight.matrix] += squares
        entry.counts[weight.matrix] += rows

    def take(self) -> dict[str, ColumnSums]:
        """Return the sums so far, and begin with none."""
        taken, self.entries = self.entries, {}
        return taken
