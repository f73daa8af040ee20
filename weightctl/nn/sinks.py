"""Attention sinks: scores without a key, which take a share of the softmax and add nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.graph.weight import Weight
from weightctl.nn.module import Module
from weightctl.nn.positions import list_all_positions, list_positions

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dim import Dim
    from weightctl.graph.value import Value
    from weightctl.split import Range


class Sinks(Module):
    """A score for each head beside those of its keys."""

    def __init__(self, heads: int, *, device: DeviceRef = CPU) -> None:
        self.weight = Weight("weight", DType.float32, (heads,), device)

    def __call__(self, own: Range | None = None) -> Value:
        """Return the scores, [heads]; `own` are the heads of a shard."""
        return self.weight if own is None else self.weight[own[0] : own[1]]


def mask_positions(positions: Dim, device: DeviceRef, window: int | None = None) -> Value:
    """Return bool[positions, keys]: which of the keys up to its own position each one sees."""
    places = ops.unsqueeze(list_positions(positions, device), 1)
    back = places - ops.unsqueeze(list_all_positions(positions, device), 0)
    seen = back >= 0
    return seen if window is None else ops.logical_and(seen, back < window)
