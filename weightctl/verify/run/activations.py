"""Sizes of the values that a part of a model gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.verify.figures import Activation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32

__all__ = ["ActivationSums", "measure_activation", "measure_usual_size"]


class ActivationSums:
    """What a part gives, looked at a piece at a time; infinities and NaN are only counted."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._squares, self._greatest = 0.0, 0.0
        self._finite, self._nonfinite = 0, 0

    def add(self, x: F32) -> None:
        """Look at more of it, of any shape."""
        if not x.size:
            return
        # Squares of what float32 can hold are too large for it.
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
        """Return what all of it comes to."""
        rms = (self._squares / self._finite) ** 0.5 if self._finite else 0.0
        return Activation(
            name=self._name, rms=rms, greatest=self._greatest, nonfinite=self._nonfinite
        )


def measure_activation(name: str, x: F32, mask: NDArray[np.bool_]) -> Activation:
    """Return the figure of what a part gives, of the positions in the mask alone."""
    gathered = ActivationSums(name)
    gathered.add(x[mask])
    return gathered.figure()


def measure_usual_size(x: F32, mask: NDArray[np.bool_]) -> float:
    """Return the root mean square of a position's numbers, the median of those of the mask.

    A few positions, the first for one, have numbers that are thousands of times larger in models
    that are well; infinite where most positions have numbers that are not finite.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        sizes = np.sqrt(np.square(x[mask], dtype=np.float64).mean(-1))
    return float(np.median(np.where(np.isnan(sizes), np.inf, sizes)))
