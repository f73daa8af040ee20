"""Which columns are at or below a diagonal."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.graph.scope import sizing
from weightctl.graph.types import TensorType
from weightctl.graph.value import apply
from weightctl.shape import Dim

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.device import DeviceRef
    from weightctl.graph.value import Value
    from weightctl.shape import DimLike

__all__ = ["infer", "lower", "triangular_mask"]


def triangular_mask(
    rows: DimLike,
    columns: DimLike,
    diagonal: DimLike = 0,
    *,
    device: DeviceRef = CPU,
) -> Value:
    """Return bool[rows, columns], True where column <= row + diagonal.

    With a diagonal of `columns - rows` it is the causal mask of the last `rows` of `columns`.
    """
    with sizing("triangular_mask"):
        height, width = Dim(rows), Dim(columns)
        # It may be negative, which no dimension is: of one it is the difference of two.
        known = Dim(diagonal).parts if isinstance(diagonal, Dim | str) else index(diagonal)
    return apply("triangular_mask", rows=height, columns=width, diagonal=known, device=device)


def infer(
    *, rows: Dim, columns: Dim, diagonal: tuple[Dim, Dim] | Dim | int, device: DeviceRef
) -> TensorType:
    """Return the type of the mask, which is the same for every diagonal."""
    del diagonal
    return TensorType(DType.bool, [rows, columns], device)


def lower(*, rows: int, columns: int, diagonal: tuple[int, int] | int, device: DeviceRef) -> Tensor:
    """Return the mask, made on the device."""
    import torch

    from weightctl.graph.ops.torch_types import torch_device

    above = diagonal if isinstance(diagonal, int) else diagonal[0] - diagonal[1]
    return torch.ones(rows, columns, dtype=torch.bool, device=torch_device(device)).tril(above)
