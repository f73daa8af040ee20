"""Divergences of what two models say at each position, and how they are distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.verify.run.likelihood import compute_log_probabilities

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32

    F64 = NDArray[np.float64]

__all__ = ["Agreement", "DivergenceSummary", "count_by_bound", "find_least_cosine", "summarize"]

# So many numbers are taken to float64 at a time.
_RUN = 1 << 20
# Upper bounds in nats, three to a factor of ten: below the first is rounding.
_BOUNDS = tuple(float(f"{10 ** (third / 3):.2g}") for third in range(-18, 4))


class Agreement:
    """The divergence of what two models say of the same positions, a few at a time.

    `divergences` are of the reference's distribution from the other, in nats, float64, one for each
    position; infinite where either has numbers that are not finite. `agreed` counts positions where
    the same token is the likeliest to both.
    """

    def __init__(self) -> None:
        self._divergences: list[F64] = []
        self.agreed = 0

    def add(self, reference: F32, logits: F32) -> None:
        """Take the logits of some positions, (positions, vocabulary) on both sides."""
        at_once = max(1, _RUN // max(1, reference.shape[-1]))
        for first in range(0, len(reference), at_once):
            run = slice(first, first + at_once)
            self._divergences.append(_measure_divergences(reference[run], logits[run]))
            same = reference[run].argmax(axis=-1) == logits[run].argmax(axis=-1)
            self.agreed += int(np.count_nonzero(same))

    @property
    def divergences(self) -> F64:
        """Those of all positions so far, in their order."""
        return np.concatenate(self._divergences) if self._divergences else np.empty(0)


def _measure_divergences(reference: F32, logits: F32) -> F64:
    with np.errstate(over="ignore", invalid="ignore"):
        expected, other = compute_log_probabilities(reference), compute_log_probabilities(logits)
        terms = np.exp(expected) * (expected - other)
        # What cannot be said by one and is not by the other is not a difference.
        terms[(expected == -np.inf) & (reference == -np.inf)] = 0
        found: F64 = terms.sum(axis=-1)
    # Of equal distributions rounding leaves a little less than nothing.
    return np.where(np.isfinite(found), np.maximum(found, 0), np.inf)


class DivergenceSummary(NamedTuple):
    """The mean, the 99th percentile and the greatest of some numbers."""

    mean: float
    percentile_99: float
    greatest: float


def summarize(numbers: F64) -> DivergenceSummary | None:
    """Return how numbers lie, None where there are none; infinite where one of them is."""
    if not numbers.size:
        return None
    # Between an infinite number and another nothing can be interpolated.
    nearest = np.percentile(numbers, 99, method="higher")
    percentile = nearest if np.isinf(numbers).any() else np.percentile(numbers, 99)
    return DivergenceSummary(float(numbers.mean()), float(percentile), float(numbers.max()))


def count_by_bound(
    numbers: F64, bounds: Sequence[float] = _BOUNDS
) -> tuple[tuple[float, int], ...]:
    """Return how many numbers are below each bound and not below the one before.

    What is below none is counted at the last, which is infinite; it is there only then.
    """
    edges = [-np.inf, *bounds, np.inf]
    places = np.searchsorted(edges, numbers, side="right") - 1
    counts = np.bincount(np.minimum(places, len(bounds)), minlength=len(bounds) + 1).tolist()
    pairs = list(zip([*bounds, float("inf")], counts, strict=True))
    return tuple(pairs if counts[-1] else pairs[:-1])


def find_least_cosine(reference: F32, states: F32) -> float:
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
