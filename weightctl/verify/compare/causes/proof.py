"""Proof of a hypothesis: with the same mistake made to it, the reference is the tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.verify.compare.distance import is_within, run_limit, sample_limit
from weightctl.verify.compare.measure import measure_pair, measure_sample

if TYPE_CHECKING:
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairs import Pair, Pairing

__all__ = ["explains", "is_likely", "is_proven"]

# A hypothesis with parameters that are fitted must explain this part of the squared error: a pair
# that is nearly within its tolerance is within it for many of them.
_LEAST_EXPLAINED = 0.75


def is_proven(made: Pair, pairing: Pairing) -> bool:
    """Whether the two tensors of a pair are equal, but for what their encodings cost."""
    return _measure_within(made, pairing) is not None


def is_likely(made: Pair, pairing: Pairing) -> bool:
    """Whether a sample of a pair does not rule out that it can be proven."""
    if made.tensor.info.shape != made.reference.info.shape or not made.tensor.info.size:
        return False
    with np.errstate(all="ignore"):
        # The sample may be NaN, which is not a match.
        return measure_sample(made, pairing.samples.of) <= sample_limit(made)


def explains(made: Pair, pairing: Pairing, found: Measured) -> bool:
    """Whether a pair is proven, and its error is a small part of that `found` before."""
    left = _measure_within(made, pairing)
    return left is not None and left.error <= (1 - _LEAST_EXPLAINED) * found.error


def _measure_within(made: Pair, pairing: Pairing) -> Measured | None:
    """Return how far a pair is apart, None where that is more than its encodings cost."""
    if not is_likely(made, pairing):
        return None
    found = measure_pair(made, run_limit(made))
    return found if is_within(made, found) else None
