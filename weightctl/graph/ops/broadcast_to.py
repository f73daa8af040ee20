"""Dimensions of size 1 repeated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.graph.ops.rules import require_broadcast
from weightctl.graph.scope import sizing
from weightctl.graph.value import apply
from weightctl.shape import Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike
    from weightctl.shape import ShapeLike

__all__ = ["broadcast_to", "infer", "lower"]


def broadcast_to(x: ValueLike, shape: ShapeLike) -> Value:
    """Return the value in a larger shape, its dimensions of size 1 repeated, as NumPy does.

    Raises `GraphError` where a dimension, counted from the last, is neither 1 nor the one wanted.
    """
    with sizing("broadcast_to", x):
        wanted = Shape(shape)
    return apply("broadcast_to", x, shape=wanted)


def infer(x: TensorType, *, shape: Shape) -> TensorType:
    """Return the type in the larger shape."""
    require_broadcast("the shape", x.shape, shape)
    return replace(x, shape=shape)


def lower(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """Return a view, in which the repeated elements are the same memory."""
    return x.expand(shape)
