"""A dimension of size 1 taken out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.ops.rules import axis_of, choose_axis
from weightctl.graph.scope import refusing
from weightctl.graph.value import apply
from weightctl.shape import Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["infer", "lower", "squeeze"]


def squeeze(x: ValueLike, axis: int | None = None, *, dim: int | None = None) -> Value:
    """Return the value without dimension `axis`; `GraphError` unless its size is known to be 1."""
    with refusing("squeeze", x):
        chosen = choose_axis(axis, dim)
        if chosen is None:
            raise GraphError("the axis is not given", hint="`axis=-1` is the last")
    return apply("squeeze", x, axis=chosen)


def infer(x: TensorType, *, axis: int) -> TensorType:
    """Return the type without the dimension."""
    place = axis_of(x.rank, axis)
    if x.shape[place] != 1:
        raise GraphError(
            f"dimension {axis} is {x.shape[place]}, not 1",
            hint=f"index it to take one of its elements: `x[{':, ' * place}0]`",
        )
    return replace(x, shape=Shape([*x.shape[:place], *x.shape[place + 1 :]]))


def lower(x: Tensor, *, axis: int) -> Tensor:
    """Return a view; nothing is copied."""
    return x.squeeze(axis)
