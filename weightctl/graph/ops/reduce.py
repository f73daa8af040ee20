"""Sums, means, minima, maxima, softmax and top-k along an axis, or over all elements."""

from __future__ import annotations

import builtins
from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph.graph import apply, apply_all
from weightctl.graph.ops.rules import (
    Op,
    choose_axis,
    require_float,
    require_number,
    require_rank,
    resolve_axis,
)
from weightctl.graph.scope import refusing, sizing
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.graph import Value, ValueLike
    from weightctl.graph.types import TensorType
    from weightctl.shape import DimLike


def sum(  # noqa: A001  # NumPy's name
    x: ValueLike,
    axis: int | None = None,
    *,
    keepdims: bool = False,
    dim: int | None = None,
    keepdim: bool = False,
) -> Value:
    """Return the sum along an axis, or of all elements if `axis` is None, in the operand's dtype.

    float16 and bfloat16 are accumulated in float32; integers wrap around. `dim` and `keepdim` are
    torch's names for `axis` and `keepdims`.
    """
    return _reduce("sum", x, axis, dim, keepdims=keepdims or keepdim)


def mean(
    x: ValueLike,
    axis: int | None = None,
    *,
    keepdims: bool = False,
    dim: int | None = None,
    keepdim: bool = False,
) -> Value:
    """Return the mean along an axis, or of all elements if `axis` is None, for float dtypes.

    `dim` and `keepdim` are torch's names for `axis` and `keepdims`.
    """
    return _reduce("mean", x, axis, dim, keepdims=keepdims or keepdim)


def max(  # noqa: A001  # NumPy's name
    x: ValueLike,
    axis: int | None = None,
    *,
    keepdims: bool = False,
    dim: int | None = None,
    keepdim: bool = False,
) -> Value:
    """Return the maximum along an axis, or of all elements if `axis` is None; NaN if any is NaN.

    `dim` and `keepdim` are torch's names for `axis` and `keepdims`.
    """
    return _reduce("max", x, axis, dim, keepdims=keepdims or keepdim)


def min(  # noqa: A001  # NumPy's name
    x: ValueLike,
    axis: int | None = None,
    *,
    keepdims: bool = False,
    dim: int | None = None,
    keepdim: bool = False,
) -> Value:
    """Return the minimum along an axis, or of all elements if `axis` is None; NaN if any is NaN.

    `dim` and `keepdim` are torch's names for `axis` and `keepdims`.
    """
    return _reduce("min", x, axis, dim, keepdims=keepdims or keepdim)


def _reduce(
    function: str, x: ValueLike, axis: int | None, dim: int | None, *, keepdims: bool
) -> Value:
    """Add a reduction with this function; `axis` and `dim` are names of the same argument."""
    with refusing(function, x):
        chosen = choose_axis(axis, dim)
    return apply(REDUCE, x, function=function, axis=chosen, keepdims=keepdims)


def infer_reduce(x: TensorType, *, function: str, axis: int | None, keepdims: bool) -> TensorType:
    """Return the operand's dtype, and the shape without the axis, or with size 1 for it."""
    if function == "mean":
        require_float(x)
    else:
        require_number(x)
    if function in {"max", "min"}:
        _require_elements(x, axis)
    return replace(x, shape=_drop_axis(x.shape, axis, keepdims=keepdims))


def _drop_axis(shape: Shape, axis: int | None, *, keepdims: bool) -> Shape:
    """Return the shape without the axis, or with size 1 for it; None means all axes."""
    gone = set(range(len(shape))) if axis is None else {resolve_axis(len(shape), axis)}
    if keepdims:
        return Shape([Dim(1) if i in gone else dim for i, dim in enumerate(shape)])
    return Shape([dim for i, dim in enumerate(shape) if i not in gone])


def _require_elements(x: TensorType, axis: int | None) -> None:
    """Raise `GraphError` if the axis is empty."""
    if (x.shape.size if axis is None else x.shape[resolve_axis(x.rank, axis)]) == 0:
        raise GraphError("an empty axis has no largest or smallest element")


def lower_reduce(x: Tensor, *, function: str, axis: int | None, keepdims: bool) -> Tensor:
    """Return the reduction; torch accumulates float16 and bfloat16 in float32."""
    axes = tuple(range(x.ndim)) if axis is None else (axis,)
    if function == "sum":
        return x.sum(axes, keepdim=keepdims, dtype=x.dtype)
    if function == "mean":
        return x.mean(axes, keepdim=keepdims)
    return x.amax(axes, keepdims) if function == "max" else x.amin(axes, keepdims)


REDUCE = Op("reduce", infer_reduce, lower_reduce)


def softmax(x: ValueLike, axis: int | None = None, *, dim: int | None = None) -> Value:
    """Return the softmax along an axis, by default the last.

    float16 and bfloat16 are computed in float32 and rounded once.
    """
    with refusing("softmax", x):
        chosen = choose_axis(axis, dim)
    return apply(SOFTMAX, x, axis=-1 if chosen is None else chosen)


def infer_softmax(x: TensorType, *, axis: int) -> TensorType:
    """Return the type of the operand."""
    require_float(x)
    resolve_axis(x.rank, axis)
    return x


def lower_softmax(x: Tensor, *, axis: int) -> Tensor:
    """Return the softmax, computed in at least float32."""
    import torch

    computed = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.softmax(axis, computed).to(x.dtype)


SOFTMAX = Op("softmax", infer_softmax, lower_softmax)


def top_k(
    x: ValueLike, k: DimLike, axis: int | None = None, *, dim: int | None = None
) -> tuple[Value, Value]:
    """Return the `k` largest elements along an axis, largest first, and their int64 indices.

    The default axis is the last. The order of equal elements is not defined. Raises `GraphError` if
    the axis has a fixed size less than `k`.
    """
    with sizing("top_k", x):
        count = Dim(k)
        chosen = choose_axis(axis, dim)
    place = -1 if chosen is None else chosen
    values, indices = apply_all(TOP_K, x, k=count, axis=place)
    return values, indices


def infer_top_k(x: TensorType, *, k: Dim, axis: int) -> tuple[TensorType, TensorType]:
    """Return the operand's dtype and int64, and the shape with size `k` for the axis."""
    require_number(x)
    axis = resolve_axis(x.rank, axis)
    size = x.shape[axis]
    if size.is_static and k.is_static and int(k) > int(size):
        raise GraphError(f"axis {axis} has {size} elements, fewer than {k}")
    values = replace(x, shape=Shape((*x.shape[:axis], k, *x.shape[axis + 1 :])))
    return values, replace(values, dtype=DType.int64)


def lower_top_k(x: Tensor, *, k: int, axis: int) -> tuple[Tensor, Tensor]:
    """Return the sorted elements and their indices."""
    values, indices = x.topk(k, axis)
    return values, indices


TOP_K = Op("top_k", infer_top_k, lower_top_k)


def mask_top_k(x: ValueLike, k: int) -> Value:
    """Return which elements are among the `k` largest of their row, along the last dimension.

    All elements are if a row has at most `k`. Of equal elements, any may be chosen.
    """
    return apply(MASK_TOP_K, x, k=k)


def infer_mask_top_k(x: TensorType, *, k: int) -> TensorType:
    """Return bool in the shape of the operand."""
    require_number(x)
    require_rank(x, 1)
    if k < 1:
        raise GraphError(f"`k` is {k}; it must be at least 1")
    return replace(x, dtype=DType.bool)


def lower_mask_top_k(x: Tensor, *, k: int) -> Tensor:
    """Return the mask, made from the indices of the largest elements."""
    import torch

    count = builtins.min(k, x.shape[-1])
    indices = x.topk(count, -1, sorted=False).indices
    return torch.zeros_like(x, dtype=torch.bool).scatter_(-1, indices, True)


MASK_TOP_K = Op("mask_top_k", infer_mask_top_k, lower_mask_top_k)
