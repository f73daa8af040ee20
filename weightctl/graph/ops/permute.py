"""Dimensions in another order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.ops.rules import axis_of
from weightctl.graph.scope import refusing
from weightctl.graph.value import apply
from weightctl.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["infer", "lower", "permute"]


def permute(x: ValueLike, axes: Sequence[int]) -> Value:
    """Return the value whose dimension `i` is dimension `axes[i]` of `x`."""
    with refusing("permute", x, axes=axes):
        order = tuple(axes)
    return apply("permute", x, axes=order)


def infer(x: TensorType, *, axes: tuple[int, ...]) -> TensorType:
    """Return the type with its dimensions in the new order."""
    order = [axis_of(x.rank, axis) for axis in axes]
    if sorted(order) != list(range(x.rank)):
        raise GraphError(
            f"axes {axes} do not name each of {x.rank} dimensions once",
            hint=f"an order of 0 to {x.rank - 1}",
        )
    return replace(x, shape=Shape([x.shape[axis] for axis in order]))


def lower(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    """Return a view; nothing is copied."""
    return x.permute(axes)
