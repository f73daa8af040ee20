"""Proves a hypothesis: with the same mistake made in it, the reference equals the tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.verify.compare.distance import is_within, run_limit, sample_limit
from weightctl.verify.compare.measure import measure_pair, measure_sample

if TYPE_CHECKING:
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairs import Pair, Pairing

__all__ = ["explains", "is_likely", "is_proven"]

# A hypothesis with fitted parameters must explain this fraction of the squared error: a pair that
# is nearly within its tolerance is within it for many parameters.
_LEAST_EXPLAINED = 0.75


def is_proven(made: Pair, pairing: Pairing) -> bool:
    """Whether the two tensors of a pair are equal, within the errors of their encodings."""
    return _measure_within(made, pairing) is not None


def is_likely(made: Pair, pairing: Pairing) -> bool:
    """Whether a sample of a pair allows that it is proven."""
    if made.tensor.info.shape != made.reference.info.shape or not made.tensor.info.size:
        return False
    with np.errstate(all="ignore"):
        # The sample may be NaN, which does not match.
        return measure_sample(made, pairing.samples.of) <= sample_limit(made)


def explains(made: Pair, pairing: Pairing, found: Measured) -> bool:
    """Whether a pair is proven, and its error is a small fraction of the error `found` before."""
    left = _measure_within(made, pairing)
    return left is not None and left.error <= (1 - _LEAST_EXPLAINED) * found.error


def _measure_within(made: Pair, pairing: Pairing) -> Measured | None:
    """Return the errors of a pair; None if they exceed those of the encodings."""
    if not is_likely(made, pairing):
        return None
    found = measure_pair(made, run_limit(made))
    return found if is_within(made, found) else None
