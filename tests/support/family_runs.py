"""What weightctl computes of the tiny checkpoints of model families."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from runs import executed
from weightctl import open_weights
from weightctl.device import CPU
from weightctl.families import recognize
from weightctl.nn.across_ranks import parallel
from weightctl.nn.models import build_network

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.split import Grid

__all__ = ["NO_POOLING", "can_run", "run_ours"]

# llama.cpp returns the states of all tokens, not one vector of a text.
NO_POOLING = 0


def run_ours(path: Path, tokens: list[int], grid: Grid | None = None) -> NDArray[np.float32]:
    """Return what the Module of a checkpoint's family computes, on a grid of ranks if given."""
    found = recognize(open_weights(path))
    found.check()
    network = build_network(found)
    if grid is not None:
        network = parallel(network, [CPU] * grid.ranks, grid=grid)
    given = [np.array([tokens])] + [np.ones((1, len(tokens)), np.int64)] * (len(network.INPUTS) - 1)
    (output,) = executed(network.graph(), *given, weights=found.weights)
    return output[0]


def can_run(path: Path) -> bool:
    found = recognize(open_weights(path))
    return found.family.find_obstacle(found.config) is None
