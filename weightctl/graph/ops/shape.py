"""Operations that change the shape or the order of dimensions, not the elements."""

from __future__ import annotations

from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, TypeAlias

from weightctl.errors import GraphError
from weightctl.graph.graph import apply
from weightctl.graph.ops.quantized import dequantize_value
from weightctl.graph.ops.rules import Op, choose_axis, require_broadcast, resolve_axis
from weightctl.graph.scope import refusing, sizing
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from weightctl.graph.graph import Value, ValueLike
    from weightctl.graph.types import TensorType
    from weightctl.shape import DimLike, ShapeLike

# Sizes, or -1 for a size that could not be computed.
_Wanted: TypeAlias = "tuple[Dim | int, ...]"


def reshape(x: ValueLike, shape: ShapeLike) -> Value:
    """Return the elements in the same order in another shape; one size may be -1.

    The size -1 is computed from the others. Raises `GraphError` unless the numbers of elements are
    equal for all sizes of named dimensions: [batch, seq, 64] becomes [batch, seq, 4, 16] or
    ["batch*seq", 64], written `Dim("batch") * "seq"`, but not [batch, 64].
    """
    value = dequantize_value(x)
    with sizing("reshape", value):
        wanted = _read_shape(shape)
    return apply(RESHAPE, value, shape=_fill_rest(value.shape, wanted))


def infer_reshape(x: TensorType, *, shape: _Wanted) -> TensorType:
    """Return the type with the new shape."""
    if -1 in shape:
        wanted = ", ".join(map(str, shape))
        if shape.count(-1) > 1:
            raise GraphError(f"[{wanted}] has more than one -1", hint="only one size can be -1")
        raise GraphError(
            f"the size -1 in [{wanted}] cannot be computed: the tensor has {x.shape.size} elements",
            hint="the number of elements must be divisible by the product of the other sizes, "
            "including named dimensions",
        )
    result = Shape(shape)
    if result.size != x.shape.size:
        raise GraphError(
            f"{result.text} has {result.size} elements, but the tensor has {x.shape.size}",
            hint="named dimensions are equal only if their names are equal; one size may be -1",
        )
    return replace(x, shape=result)


def lower_reshape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """Return a view if the strides allow it, otherwise a copy."""
    return x.reshape(shape)


RESHAPE = Op("reshape", infer_reshape, lower_reshape)


def _read_shape(shape: ShapeLike) -> _Wanted:
    """Return the requested shape as dimensions and -1."""
    if isinstance(shape, str) or not hasattr(shape, "__iter__"):
        raise TypeError(f"a shape must be a sequence of dimensions, not {shape!r}")
    return tuple(-1 if _is_rest(size) else Dim(size) for size in shape)


def _is_rest(size: DimLike) -> bool:
    """Whether a size is -1, the size to compute."""
    return not isinstance(size, Dim | str) and index(size) == -1


def _fill_rest(before: Shape, wanted: _Wanted) -> _Wanted:
    """Replace -1 by the remaining size if that can be computed."""
    if wanted.count(-1) != 1:
        return wanted
    left, others = list(before), list[Dim]()
    for size in wanted:
        if not isinstance(size, Dim):
            continue
        if size in left:
            left.remove(size)
        else:
            others.append(size)
    total, known = Shape(left).size, Shape(others).size
    if known == 0 or total // known * known != total:
        return wanted
    return tuple(total // known if size == -1 else size for size in wanted)


def broadcast_to(x: ValueLike, shape: ShapeLike) -> Value:
    """Return the value broadcast to a larger shape, with dimensions of size 1 repeated.

    Raises `GraphError` if a dimension, counted from the last, is neither 1 nor the wanted size.
    """
    with sizing("broadcast_to", x):
        wanted = Shape(shape)
    return apply(BROADCAST_TO, x, shape=wanted)


def infer_broadcast_to(x: TensorType, *, shape: Shape) -> TensorType:
    """Return the type with the larger shape."""
    require_broadcast("the shape", x.shape, shape)
    return replace(x, shape=shape)


def lower_broadcast_to(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """Return a view, in which repeated elements share memory."""
    return x.expand(shape)


BROADCAST_TO = Op("broadcast_to", infer_broadcast_to, lower_broadcast_to)


def permute(x: ValueLike, axes: Sequence[int]) -> Value:
    """Return the value whose dimension `i` is dimension `axes[i]` of `x`."""
    with refusing("permute", x, axes=axes):
        order = tuple(axes)
    return apply(PERMUTE, x, axes=order)


def infer_permute(x: TensorType, *, axes: tuple[int, ...]) -> TensorType:
    """Return the type with its dimensions in the new order."""
    order = [resolve_axis(x.rank, axis) for axis in axes]
    if sorted(order) != list(range(x.rank)):
        raise GraphError(
            f"axes {axes} do not contain each of the {x.rank} dimensions once",
            hint=f"use each of 0 to {x.rank - 1} once",
        )
    return replace(x, shape=Shape([x.shape[axis] for axis in order]))


def lower_permute(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    return x.permute(axes)


PERMUTE = Op("permute", infer_permute, lower_permute)


def transpose(x: ValueLike, axis_1: int, axis_2: int) -> Value:
    """Return the value with two of its dimensions swapped; negative axes count from the last."""
    return apply(TRANSPOSE, x, axis_1=axis_1, axis_2=axis_2)


def infer_transpose(x: TensorType, *, axis_1: int, axis_2: int) -> TensorType:
    """Return the type with the two dimensions swapped."""
    first, second = resolve_axis(x.rank, axis_1), resolve_axis(x.rank, axis_2)
    dims = list(x.shape)
    dims[first], dims[second] = dims[second], dims[first]
    return replace(x, shape=Shape(dims))


def lower_transpose(x: Tensor, *, axis_1: int, axis_2: int) -> Tensor:
    return x.transpose(axis_1, axis_2)


TRANSPOSE = Op("transpose", infer_transpose, lower_transpose)


def unsqueeze(x: ValueLike, axis: int | None = None, *, dim: int | None = None) -> Value:
    """Return the value with an additional dimension of size 1 at `axis` of the result."""
    with refusing("unsqueeze", x):
        chosen = choose_axis(axis, dim)
        if chosen is None:
            raise GraphError("the axis is missing", hint="for example `axis=-1` for the last axis")
    return apply(UNSQUEEZE, x, axis=chosen)


def infer_unsqueeze(x: TensorType, *, axis: int) -> TensorType:
    """Return the type with the additional dimension."""
    place = resolve_axis(x.rank + 1, axis)
    return replace(x, shape=Shape([*x.shape[:place], 1, *x.shape[place:]]))


def lower_unsqueeze(x: Tensor, *, axis: int) -> Tensor:
    return x.unsqueeze(axis)


UNSQUEEZE = Op("unsqueeze", infer_unsqueeze, lower_unsqueeze)
