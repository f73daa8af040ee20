"""How far what a model says is from what another says: Kullback-Leibler divergence by position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.verify.run.likelihood import log_probabilities

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32

    F64 = NDArray[np.float64]

__all__ = ["Agreement"]

# So many numbers are taken to float64 at a time.
_RUN = 1 << 20


class Agreement:
    """What two models say of the same positions, gathered a few positions at a time.

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
            self._divergences.append(_divergences(reference[run], logits[run]))
            same = reference[run].argmax(axis=-1) == logits[run].argmax(axis=-1)
            self.agreed += int(np.count_nonzero(same))

    @property
    def divergences(self) -> F64:
        """Those of all positions so far, in their order."""
        return np.concatenate(self._divergences) if self._divergences else np.empty(0)


def _divergences(reference: F32, logits: F32) -> F64:
    with np.errstate(over="ignore", invalid="ignore"):
        said, other = log_probabilities(reference), log_probabilities(logits)
        terms = np.exp(said) * (said - other)
        # What cannot be said by one and is not by the other is no difference.
        terms[(said == -np.inf) & (reference == -np.inf)] = 0
        found: F64 = terms.sum(axis=-1)
    # Of equal distributions rounding leaves a little less than nothing.
    return np.where(np.isfinite(found), np.maximum(found, 0), np.inf)
