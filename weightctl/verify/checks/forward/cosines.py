"""How alike the states are that two encoders give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from weightctl.codecs.base import F32

__all__ = ["least_cosine"]


def least_cosine(reference: F32, states: F32) -> float:
    """Return the least cosine between vectors of the same positions, shape (positions, hidden).

    1 where there is no position, 0 for a vector that is zero or not finite on one side alone.
    """
    a, b = reference.astype(np.float64), states.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
        cosines = np.vecdot(a, b) / lengths
    same = (a == b).all(axis=-1)
    cosines = np.where(same, 1.0, np.where(np.isfinite(cosines), cosines, 0.0))
    return float(cosines.min(initial=1.0))
