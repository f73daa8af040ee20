"""Shares that add up to 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.graph.ops.rules import axis_of, choose_axis, require_float
from weightctl.graph.scope import refusing
from weightctl.graph.value import apply

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["infer", "lower", "softmax"]


def softmax(x: ValueLike, axis: int | None = None, *, dim: int | None = None) -> Value:
    """Return the exponentials of the elements divided by their sum along an axis, the last (-1).

    float16 and bfloat16 are computed in float32 and rounded once.
    """
    with refusing("softmax", x):
        chosen = choose_axis(axis, dim)
    return apply("softmax", x, axis=-1 if chosen is None else chosen)


def infer(x: TensorType, *, axis: int) -> TensorType:
    """Return the operand's own type."""
    require_float(x)
    axis_of(x.rank, axis)
    return x


def lower(x: Tensor, *, axis: int) -> Tensor:
    """Return the shares, computed in at least float32."""
    import torch

    computed = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.softmax(axis, computed).to(x.dtype)
