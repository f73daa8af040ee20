"""Where the largest element is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.graph.ops.reduce import reduce_shape, require_elements
from weightctl.graph.ops.rules import require_number
from weightctl.graph.value import apply

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["argmax", "infer", "lower"]


def argmax(x: ValueLike, axis: int | None = -1, *, keepdims: bool = False) -> Value:
    """Return the int64 index of the first largest element along an axis.

    With None it is the index into the elements of all axes, the last axis fastest.
    """
    return apply("argmax", x, axis=axis, keepdims=keepdims)


def infer(x: TensorType, *, axis: int | None, keepdims: bool) -> TensorType:
    """Return the type of indices; the shape without the axis, or with 1 in its place."""
    require_number(x)
    require_elements(x, axis)
    return replace(x, dtype=DType.int64, shape=reduce_shape(x.shape, axis, keepdims=keepdims))


def lower(x: Tensor, *, axis: int | None, keepdims: bool) -> Tensor:
    """Return a copy."""
    return x.argmax(axis, keepdim=keepdims)
