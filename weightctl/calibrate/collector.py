"""Sums the squares of what weights are multiplied with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.errors import EngineError
from weightctl.formats.imatrix.sums import ColumnSums

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from weightctl.calibrate.measured_weights import MeasuredWeight

__all__ = ["SumsCollector"]


class SumsCollector:
    """Adds the squares of the left operands of products, for the weights that are measured.

    `entries` has the sums by the names of the tensors in GGUF.
    """

    def __init__(self, measured: Mapping[str, MeasuredWeight]) -> None:
        self._measured = measured
        self.entries: dict[str, ColumnSums] = {}
        # Several weights in a row often read the same values, such as queries, keys and values.
        self._last: Tensor | None = None
        self._squares: NDArray[np.float64] = np.zeros(0)

    def observe(self, name: str, left: Tensor) -> None:
        """Add the values, shape (..., columns), that a weight is multiplied with.

        Raises `EngineError` if they are not finite.
        """
        weight = self._measured.get(name)
        if weight is None:
            return
        columns = left.shape[-1]
        if left is not self._last:
            self._last, self._squares = left, _sum_squares(left)
        squares = self._squares if weight.order is None else self._squares[list(weight.order)]
        if not np.isfinite(squares).all():
            raise EngineError(
                f"`{weight.tensor}` is multiplied with values that are NaN or too large",
                hint="the model or the file is damaged; check it with `weightctl verify`",
            )
        entry = self.entries.get(weight.tensor)
        if entry is None:
            shape = (weight.matrices, columns)
            entry = ColumnSums(np.zeros(shape), np.zeros(weight.matrices, np.int64))
            self.entries[weight.tensor] = entry
        entry.squares[weight.matrix] += squares
        entry.counts[weight.matrix] += left.numel() // columns

    def take(self) -> dict[str, ColumnSums]:
        """Return the sums so far, and begin with none."""
        taken, self.entries, self._last = self.entries, {}, None
        return taken


def _sum_squares(left: Tensor) -> NDArray[np.float64]:
    rows = left.reshape(-1, left.shape[-1]).float()
    found: NDArray[np.float64] = rows.square().sum(0).double().cpu().numpy()
    return found
