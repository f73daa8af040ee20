"""Divergences of two models' predictions at each position, and their distribution."""

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

# The number of values to convert to float64 at once.
_RUN = 1 << 20
# Upper bounds in nats, three for each factor of ten; divergences below the first are rounding.
_BOUNDS = tuple(float(f"{10 ** (third / 3):.2g}") for third in range(-18, 4))


class Agreement:
    """The divergences of two models' predictions at the same positions, added in batches.

    `divergences` is the Kullback-Leibler divergence from the reference's distribution to the other,
    in nats, float64, for each position; infinite if either side has logits that are not finite.
    `agreed` is the number of positions where both models predict the same most likely token.
    """

    def __init__(self) -> None:
        self._divergences: list[F64] = []
        self.agreed = 0

    def add(self, reference: F32, logits: F32) -> None:
        """Add the logits of more positions: [positions, vocabulary] from both models."""
        at_once = max(1, _RUN // max(1, reference.shape[-1]))
        for first in range(0, len(reference), at_once):
            run = slice(first, first + at_once)
            self._divergences.append(_measure_divergences(reference[run], logits[run]))
            same = reference[run].argmax(axis=-1) == logits[run].argmax(axis=-1)
            self.agreed += int(np.count_nonzero(same))

    @property
    def divergences(self) -> F64:
        """The divergences of all positions so far, in order."""
        return np.concatenate(self._divergences) if self._divergences else np.empty(0)


def _measure_divergences(reference: F32, logits: F32) -> F64:
    with np.errstate(over="ignore", invalid="ignore"):
        expected, other = compute_log_probabilities(reference), compute_log_probabilities(logits)
        terms = np.exp(expected) * (expected - other)
        # A token that has probability zero in both models is not a difference.
        terms[(expected == -np.inf) & (reference == -np.inf)] = 0
        found: F64 = terms.sum(axis=-1)
    # Rounding makes the divergence of equal distributions slightly negative.
    return np.where(np.isfinite(found), np.maximum(found, 0), np.inf)


class DivergenceSummary(NamedTuple):
    """The mean, the 99th percentile and the largest of some values."""

    mean: float
    percentile_99: float
    greatest: float


def summarize(numbers: F64) -> DivergenceSummary | None:
    """Return a summary of the values; None if there are none, infinite if one of them is."""
    if not numbers.size:
        return None
    # An infinite value cannot be interpolated.
    nearest = np.percentile(numbers, 99, method="higher")
    percentile = nearest if np.isinf(numbers).any() else np.percentile(numbers, 99)
    return DivergenceSummary(float(numbers.mean()), float(percentile), float(numbers.max()))


def count_by_bound(
    numbers: F64, bounds: Sequence[float] = _BOUNDS
) -> tuple[tuple[float, int], ...]:
    """Return for each bound how many values are below it, and not below the previous bound.

    The last bound is infinite, and is only present if values are above all others.
    """
    edges = [-np.inf, *bounds, np.inf]
    places = np.searchsorted(edges, numbers, side="right") - 1
    counts = np.bincount(np.minimum(places, len(bounds)), minlength=len(bounds) + 1).tolist()
    pairs = list(zip([*bounds, float("inf")], counts, strict=True))
    return tuple(pairs if counts[-1] else pairs[:-1])


def find_least_cosine(reference: F32, states: F32) -> float:
    """Return the smallest cosine between vectors at the same positions, [positions, hidden].

    1 without positions; 0 if a vector is zero or not finite on one side only.
    """
    a, b = reference.astype(np.float64), states.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
        cosines = np.vecdot(a, b) / lengths
    same = (a == b).all(axis=-1)
    cosines = np.where(same, 1.0, np.where(np.isfinite(cosines), cosines, 0.0))
    return float(cosines.min(initial=1.0))
