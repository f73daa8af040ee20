"""The largest elements and where they are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph.ops.rules import axis_of, choose_axis, require_number
from weightctl.graph.scope import sizing
from weightctl.graph.value import apply_all
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike
    from weightctl.shape import DimLike

__all__ = ["infer", "lower", "top_k"]


def top_k(
    x: ValueLike, k: DimLike, axis: int | None = None, *, dim: int | None = None
) -> tuple[Value, Value]:
    """Return the `k` largest elements along an axis (-1), largest first, and their int64 indices.

    Which of equal elements comes first is not settled. Raises `GraphError` where the axis is
    known to have fewer than `k`.
    """
    with sizing("top_k", x):
        count = Dim(k)
        chosen = choose_axis(axis, dim)
    place = -1 if chosen is None else chosen
    values, indices = apply_all("top_k", x, k=count, axis=place)
    return values, indices


def infer(x: TensorType, *, k: Dim, axis: int) -> tuple[TensorType, TensorType]:
    """Return the operand's dtype and int64; the shape with `k` in place of the axis."""
    require_number(x)
    axis = axis_of(x.rank, axis)
    size = x.shape[axis]
    if size.is_static and k.is_static and int(k) > int(size):
        raise GraphError(f"axis {axis} has {size} elements, fewer than {k}")
    values = replace(x, shape=Shape((*x.shape[:axis], k, *x.shape[axis + 1 :])))
    return values, replace(values, dtype=DType.int64)


def lower(x: Tensor, *, k: int, axis: int) -> tuple[Tensor, Tensor]:
    """Return copies, sorted."""
    values, indices = x.topk(k, axis)
    return values, indices
