"""Likelihoods of the next tokens, from logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32

    F64 = NDArray[np.float64]

__all__ = [
    "compute_least_losses",
    "compute_log_probabilities",
    "compute_losses",
    "compute_perplexity",
    "count_positions",
]

_MOST_BYTES = 64 * 2**20


def count_positions(vocabulary: int) -> int:
    """Return how many positions' float32 logits fit in 64 MiB, at least one."""
    return max(1, _MOST_BYTES // (4 * max(1, vocabulary)))


def compute_losses(logits: F32, targets: NDArray[np.int64], least: F64 | None = None) -> F64:
    """Return the loss of each target, in nats: logits [n, vocabulary], targets [n] -> [n].

    `least` is the result of `compute_least_losses`, if already computed. Sums are float64. Losses
    are NaN if the logits are not finite.
    """
    least = compute_least_losses(logits) if least is None else least
    with np.errstate(invalid="ignore", over="ignore"):
        own = np.take_along_axis(logits, targets[:, None], -1)[:, 0]
        found: F64 = least + (logits.max(-1) - own)
    return found


def compute_least_losses(logits: F32) -> F64:
    """Return the loss of each position's most likely token, in nats: [n, any] -> [n]."""
    found = np.empty(len(logits), np.float64)
    # A few rows at a time fit in the processor's cache.
    step = max(1, count_positions(logits.shape[-1]) // 64)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(logits), step):
            rows = logits[start : start + step]
            total = np.exp(rows - rows.max(-1, keepdims=True)).sum(-1, dtype=np.float64)
            found[start : start + step] = np.log(total)
    return found


def compute_log_probabilities(logits: F32) -> F64:
    """Return the logarithms of probabilities along the last axis."""
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = logits.astype(np.float64)
        shifted -= shifted.max(-1, keepdims=True)
        shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def compute_perplexity(all_losses: F64) -> float | None:
    """Return the exponential of the mean loss, infinite if that overflows.

    None if there are no losses, or if one is not finite.
    """
    if not all_losses.size or not np.isfinite(all_losses).all():
        return None
    with np.errstate(over="ignore"):
        return float(np.exp(all_losses.mean()))
