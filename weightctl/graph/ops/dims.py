"""Dimensions as numbers to compute with."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.graph.scope import sizing
from weightctl.graph.types import TensorType
from weightctl.graph.value import apply
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.device import DeviceRef
    from weightctl.graph.value import Value
    from weightctl.shape import DimLike, ShapeLike

__all__ = ["dims", "infer", "lower"]


def dims(value: DimLike | ShapeLike, *, device: DeviceRef = CPU) -> Value:
    """Return a dimension as an int64 scalar, or a shape as an int64 vector.

    Names become sizes when the graph runs.
    """
    with sizing("dims"):
        known = Dim(value) if isinstance(value, Dim | str | SupportsIndex) else Shape(value)
    return apply("dims", dims=known, device=device)


def infer(*, dims: Dim | Shape, device: DeviceRef) -> TensorType:
    """Return the type of an int64 scalar or vector."""
    return TensorType(DType.int64, (len(dims),) if isinstance(dims, Shape) else (), device)


def lower(*, dims: int | tuple[int, ...], device: DeviceRef) -> Tensor:
    """Return the sizes as a tensor."""
    import torch

    from weightctl.graph.ops.torch_types import torch_device

    return torch.tensor(dims, dtype=torch.int64, device=torch_device(device))
