"""Attention sinks: scores without a key, which take a share of the softmax and add nothing."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.graph.weight import Weight
from weightctl.nn.module import Module
from weightctl.nn.positions import list_all_positions, list_positions
from weightctl.nn.precision import weight_as

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dim import Dim
    from weightctl.graph.value import Value
    from weightctl.split import Range

__all__ = ["Sinks", "mask_positions"]


class Sinks(Module):
    """A score for each head beside those of its keys."""

    def __init__(self, heads: int, *, device: DeviceRef = CPU) -> None:
        self.weight = Weight("weight", DType.float32, (heads,), device)

    def __call__(
        self, keys: Value, values: Value, positions: Dim, window: int | None, own: Range | None
    ) -> tuple[Value, Value, Value]:
        """Return keys and values with one of zeros before them, and what is added to the scores.

        The keys are [batch, kv_heads, keys, head_dim], and the queries have the last `positions` of
        their positions; `own` are the heads of a shard.
        """
        scores = weight_as(self.weight, keys.dtype)
        scores = scores if own is None else scores[own[0] : own[1]]
        heads = scores.shape[0]
        seen = mask_positions(positions, keys.device, window)
        hidden = ops.where(seen, 0.0, -inf).cast(keys.dtype)
        mask = ops.concat(
            [
                ops.broadcast_to(scores.reshape((heads, 1, 1)), (heads, positions, 1)),
                ops.broadcast_to(hidden, (heads, *hidden.shape)),
            ],
            axis=-1,
        )
        return _with_zeros(keys), _with_zeros(values), mask


def mask_positions(positions: Dim, device: DeviceRef, window: int | None = None) -> Value:
    """Return bool[positions, keys]: which of the keys up to its own position each one sees."""
    places = ops.unsqueeze(list_positions(positions, device), 1)
    back = places - ops.unsqueeze(list_all_positions(positions, device), 0)
    seen = back >= 0
    return seen if window is None else ops.logical_and(seen, back < window)


def _with_zeros(x: Value) -> Value:
    """Return keys or values with one of zeros before all others."""
    return ops.concat([x[:, :, :1] * 0.0, x], axis=2)
