"""The same elements in another shape."""

from __future__ import annotations

from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, TypeAlias

from weightctl.errors import GraphError
from weightctl.graph.ops.dequantize import numbers_of
from weightctl.graph.scope import sizing
from weightctl.graph.value import apply
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike
    from weightctl.shape import DimLike, ShapeLike

__all__ = ["infer", "lower", "reshape"]

# Sizes, and -1 for one that could not be worked out.
_Wanted: TypeAlias = "tuple[Dim | int, ...]"


def reshape(x: ValueLike, shape: ShapeLike) -> Value:
    """Return the elements in the same order in another shape; one size may be -1: what is left.

    Raises `GraphError` unless the numbers of elements are equal whatever size the names of
    dimensions stand for: [batch, seq, 64] becomes [batch, seq, 4, 16] or ["batch*seq", 64], written
    `Dim("batch") * "seq"`, but not [batch, 64].
    """
    value = numbers_of(x)
    with sizing("reshape", value):
        wanted = _read_shape(shape)
    return apply("reshape", value, shape=_fill_rest(value.shape, wanted))


def infer(x: TensorType, *, shape: _Wanted) -> TensorType:
    """Return the type in the new shape."""
    if -1 in shape:
        wanted = ", ".join(map(str, shape))
        if shape.count(-1) > 1:
            raise GraphError(f"[{wanted}] has more than one -1", hint="give all sizes but one")
        raise GraphError(
            f"there is no size for -1 in [{wanted}] that gives {x.shape.size} elements",
            hint="the other sizes should divide the number of elements, also as names",
        )
    result = Shape(shape)
    if result.size != x.shape.size:
        raise GraphError(
            f"{result.text} has {result.size} elements, not {x.shape.size}",
            hint="dimensions are equal where their names are; one size may be -1",
        )
    return replace(x, shape=result)


def lower(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """Return a view where the strides allow one, else a copy."""
    return x.reshape(shape)


def _read_shape(shape: ShapeLike) -> _Wanted:
    if isinstance(shape, str) or not hasattr(shape, "__iter__"):
        raise TypeError(f"a shape is a sequence of dimensions, not {shape!r}")
    return tuple(-1 if _is_rest(size) else Dim(size) for size in shape)


def _is_rest(size: DimLike) -> bool:
    return not isinstance(size, Dim | str) and index(size) == -1


def _fill_rest(before: Shape, wanted: _Wanted) -> _Wanted:
    """Put the size that is left in the place of -1, where there is one such size."""
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
