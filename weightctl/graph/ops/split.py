"""A value cut into parts along a dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.ops.rules import axis_of
from weightctl.graph.scope import sizing
from weightctl.graph.value import apply_all
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike
    from weightctl.shape import ShapeLike

__all__ = ["infer", "lower", "split"]


def split(x: ValueLike, sizes: ShapeLike, axis: int = 0) -> tuple[Value, ...]:
    """Return the parts of these sizes along `axis`, in order.

    Raises `GraphError` unless the sizes add up to the dimension, whatever names stand for.
    """
    with sizing("split", x):
        parts = Shape(sizes)
    return apply_all("split", x, sizes=parts, axis=axis)


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
