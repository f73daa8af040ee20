"""Sizes of the outputs of a model's parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.verify.figures import Activation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32

__all__ = ["ActivationSums", "measure_activation", "measure_usual_size"]


class ActivationSums:
    """Sums over the output of a part, added in chunks; infinite and NaN values are only counted."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._squares, self._greatest = 0.0, 0.0
        self._finite, self._nonfinite = 0, 0

    def add(self, x: F32) -> None:
        """Add values, of any shape."""
        if not x.size:
            return
        # Squares of large float32 values overflow float32.
        with np.errstate(invalid="ignore", over="ignore"):
            squares = np.einsum("i,i->", x.reshape(-1), x.reshape(-1), dtype=np.float64)
            greatest = float(np.abs(x).max())
        if not (np.isfinite(squares) and np.isfinite(greatest)):
            kept = x[np.isfinite(x)].astype(np.float64)
            self._nonfinite += x.size - kept.size
            squares, greatest = (kept**2).sum(), float(np.abs(kept).max(initial=0.0))
            self._finite += kept.size
        else:
            self._finite += x.size
        self._squares += float(squares)
        self._greatest = max(self._greatest, greatest)

    def figure(self) -> Activation:
        """Return the figure for all values so far."""
        rms = (self._squares / self._finite) ** 0.5 if self._finite else 0.0
        return Activation(
            name=self._name, rms=rms, greatest=self._greatest, nonfinite=self._nonfinite
        )


def measure_activation(name: str, x: F32, mask: NDArray[np.bool_]) -> Activation:
    """Return the figure of a part's output at the positions of the mask."""
    gathered = ActivationSums(name)
    gathered.add(x[mask])
    return gathered.figure()


def measure_usual_size(x: F32, mask: NDArray[np.bool_]) -> float:
    """Return the median over the mask's positions of the root mean square of their values.

    In healthy models a few positions, such as the first, have values that are thousands of times
    larger; the median ignores them. Infinite if most positions have values that are not finite.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        sizes = np.sqrt(np.square(x[mask], dtype=np.float64).mean(-1))
    return float(np.median(np.where(np.isnan(sizes), np.inf, sizes)))
