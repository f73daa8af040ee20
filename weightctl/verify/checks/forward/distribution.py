"""How the divergences of many positions are distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    F64 = NDArray[np.float64]

__all__ = ["Spread", "histogram", "spread"]

# Upper bounds in nats, three to a factor of ten: below the first is rounding.
_BOUNDS = tuple(float(f"{10 ** (third / 3):.2g}") for third in range(-18, 4))


class Spread(NamedTuple):
    """The mean, the 99th percentile and the greatest of some numbers."""

    mean: float
    percentile_99: float
    greatest: float


def spread(numbers: F64) -> Spread | None:
    """Return how numbers lie, None where there are none; infinite where one of them is."""
    if not numbers.size:
        return None
    # Between an infinite number and another nothing can be interpolated.
    nearest = np.percentile(numbers, 99, method="higher")
    percentile = nearest if np.isinf(numbers).any() else np.percentile(numbers, 99)
    return Spread(float(numbers.mean()), float(percentile), float(numbers.max()))


def histogram(numbers: F64, bounds: Sequence[float] = _BOUNDS) -> tuple[tuple[float, int], ...]:
    """Return how many numbers are below each bound and not below the one before.

    What is below none is counted at the last, which is infinite; it is there only then.
    """
    edges = [-np.inf, *bounds, np.inf]
    places = np.searchsorted(edges, numbers, side="right") - 1
    counts = np.bincount(np.minimum(places, len(bounds)), minlength=len(bounds) + 1).tolist()
    pairs = list(zip([*bounds, float("inf")], counts, strict=True))
    return tuple(pairs if counts[-1] else pairs[:-1])
