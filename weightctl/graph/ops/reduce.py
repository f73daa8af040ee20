"""Sums, means and extremes along an axis, or of all elements."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.ops.rules import axis_of, choose_axis, require_float, require_number
from weightctl.graph.scope import refusing
from weightctl.graph.value import apply
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["infer", "lower", "max", "mean", "min", "reduce_shape", "require_elements", "sum"]


def sum(  # noqa: A001  # as Python calls it
    x: ValueLike,
    axis: int | None = None,
    *,
    keepdims: bool = False,
    dim: int | None = None,
    keepdim: bool = False,
) -> Value:
    """Return the sums along an axis, None for all elements, in the operand's dtype.

    float16 and bfloat16 are added up in float32; integers wrap around. `dim` and `keepdim` are
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
    """Return the means of floating-point numbers along an axis, None for all elements.

    `dim` and `keepdim` are torch's names for `axis` and `keepdims`.
    """
    return _reduce("mean", x, axis, dim, keepdims=keepdims or keepdim)


def max(  # noqa: A001  # as Python calls it
    x: ValueLike,
    axis: int | None = None,
    *,
    keepdims: bool = False,
    dim: int | None = None,
    keepdim: bool = False,
) -> Value:
    """Return the largest elements along an axis, None for all; NaN where there is one.

    `dim` and `keepdim` are torch's names for `axis` and `keepdims`.
    """
    return _reduce("max", x, axis, dim, keepdims=keepdims or keepdim)


def min(  # noqa: A001  # as Python calls it
    x: ValueLike,
    axis: int | None = None,
    *,
    keepdims: bool = False,
    dim: int | None = None,
    keepdim: bool = False,
) -> Value:
    """Return the smallest elements along an axis, None for all; NaN where there is one.

    `dim` and `keepdim` are torch's names for `axis` and `keepdims`.
    """
    return _reduce("min", x, axis, dim, keepdims=keepdims or keepdim)


def _reduce(
    function: str, x: ValueLike, axis: int | None, dim: int | None, *, keepdims: bool
) -> Value:
    with refusing(function, x):
        chosen = choose_axis(axis, dim)
    return apply("reduce", x, function=function, axis=chosen, keepdims=keepdims)


def infer(x: TensorType, *, function: str, axis: int | None, keepdims: bool) -> TensorType:
    """Return the operand's dtype; the shape without the axis, or with 1 in its place."""
    if function == "mean":
        require_float(x)
    else:
        require_number(x)
    if function in {"max", "min"}:
        require_elements(x, axis)
    return replace(x, shape=reduce_shape(x.shape, axis, keepdims=keepdims))


def reduce_shape(shape: Shape, axis: int | None, *, keepdims: bool) -> Shape:
    """Return the shape without the axis, or with 1 in its place; None is all axes."""
    gone = set(range(len(shape))) if axis is None else {axis_of(len(shape), axis)}
    if keepdims:
        return Shape([Dim(1) if i in gone else dim for i, dim in enumerate(shape)])
    return Shape([dim for i, dim in enumerate(shape) if i not in gone])


def require_elements(x: TensorType, axis: int | None) -> None:
    """Raise `GraphError` where there is nothing to choose from."""
    if (x.shape.size if axis is None else x.shape[axis_of(x.rank, axis)]) == 0:
        raise GraphError("of no elements none is the largest or the smallest")


def lower(x: Tensor, *, function: str, axis: int | None, keepdims: bool) -> Tensor:
    """Return a copy; torch adds up float16 and bfloat16 in float32."""
    axes = tuple(range(x.ndim)) if axis is None else (axis,)
    if function == "sum":
        return x.sum(axes, keepdim=keepdims, dtype=x.dtype)
    if function == "mean":
        return x.mean(axes, keepdim=keepdims)
    return x.amax(axes, keepdims) if function == "max" else x.amin(axes, keepdims)
