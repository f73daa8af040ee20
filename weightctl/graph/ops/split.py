"""A value cut into parts along a dimension."""

from __future__ import annotations

from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

from weightctl.errors import GraphError
from weightctl.graph.ops.dequantize import numbers_of
from weightctl.graph.ops.rules import axis_of, choose_axis
from weightctl.graph.scope import refusing, sizing
from weightctl.graph.value import apply_all
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike
    from weightctl.shape import ShapeLike

__all__ = ["chunk", "infer", "lower", "split"]


def split(
    x: ValueLike, sizes: ShapeLike, axis: int | None = None, *, dim: int | None = None
) -> tuple[Value, ...]:
    """Return the parts of these sizes along `axis` (0), in order.

    Raises `GraphError` unless the sizes add up to the dimension, whatever names stand for.
    """
    with sizing("split", x):
        parts = Shape(sizes)
        chosen = choose_axis(axis, dim)
    return apply_all("split", x, sizes=parts, axis=0 if chosen is None else chosen)


def chunk(
    x: ValueLike, chunks: int, axis: int | None = None, *, dim: int | None = None
) -> tuple[Value, ...]:
    """Return `chunks` parts along `axis` (0): as long as can be but for the last, as torch's.

    There are fewer where the size does not suffice. Raises `GraphError` for a size that is only a
    name, and for no chunks.
    """
    value = numbers_of(x)
    with refusing("chunk", value):
        place = axis_of(value.rank, choose_axis(axis, dim) or 0)
        if not value.shape[place].is_static:
            raise GraphError(
                f"dimension {place} is {value.shape[place]}, whose parts have no known sizes",
                hint="`ops.split` takes sizes with names",
            )
        # It may be anything: a caller's types are not checked.
        count: Any = chunks
        if not isinstance(count, SupportsIndex) or index(count) < 1:
            raise GraphError(f"{chunks!r} chunks cannot be made", hint="a whole number from 1 on")
        size = int(value.shape[place])
        length = max(-(-size // index(chunks)), 1)
        sizes = [min(length, size - start) for start in range(0, size, length)] or [0]
    return split(value, sizes, place)


def infer(x: TensorType, *, sizes: Shape, axis: int) -> tuple[TensorType, ...]:
    """Return a type for each part."""
    place = axis_of(x.rank, axis)
    total = Dim(0)
    for size in sizes:
        total += size
    if not sizes or total != x.shape[place]:
        raise GraphError(
            f"sizes {sizes.text} add up to {total}, dimension {axis} is {x.shape[place]}",
            hint="the last size may be written as the dimension less the others",
        )
    before, after = x.shape[:place], x.shape[place + 1 :]
    return tuple(replace(x, shape=Shape([*before, size, *after])) for size in sizes)


def lower(x: Tensor, *, sizes: tuple[int, ...], axis: int) -> tuple[Tensor, ...]:
    """Return views; nothing is copied."""
    import torch

    return torch.split(x, list(sizes), dim=axis)
