"""The same numbers on another device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.graph.value import apply

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.device import DeviceRef
    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["infer", "lower", "transfer_to"]


def transfer_to(x: ValueLike, device: DeviceRef) -> Value:
    """Return the operand on a device; not copied where it is there already."""
    return apply("transfer_to", x, device=device)


def infer(x: TensorType, *, device: DeviceRef) -> TensorType:
    """Return the type with the other device."""
    return replace(x, device=device)


def lower(x: Tensor, *, device: DeviceRef) -> Tensor:
    """Return a copy there, or the operand itself where it is there already."""
    from weightctl.graph.ops.torch_types import torch_device

    return x.to(torch_device(device))
