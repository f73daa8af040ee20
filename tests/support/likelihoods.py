"""How far apart what two runs of a model say is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


def log_softmax(logits: Floats) -> Floats:
    """Return the logarithms of probabilities, along the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def mean_divergence(expected: Floats, found: Floats) -> float:
    """Return the mean Kullback-Leibler divergence of logits [tokens, vocabulary], in nats."""
    right, other = log_softmax(expected.astype(np.float64)), log_softmax(found.astype(np.float64))
    return float((np.exp(right) * (right - other)).sum(-1).mean())


def cosines(one: Floats, other: Floats) -> Floats:
    """Return the cosines of the angles between vectors, along the last axis."""
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return (one * other).sum(-1) / lengths
