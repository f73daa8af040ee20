"""Attention within chunks of positions: each position sees those of its own chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.graph import ops

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dim import Dim
    from weightctl.graph.value import Value

__all__ = ["mask_chunks"]


def mask_chunks(positions: Dim, device: DeviceRef, size: int) -> Value:
    """Return bool[positions, positions]: which positions are in the chunk of each one.

    The chunks begin at the multiples of `size`.
    """
    chunks = ops.floordiv(ops.range(positions, device=device), size)
    return ops.equal(ops.unsqueeze(chunks, 1), ops.unsqueeze(chunks, 0))
