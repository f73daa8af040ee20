"""A dimension of size 1 put in."""

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

__all__ = ["infer", "lower", "unsqueeze"]


def unsqueeze(x: ValueLike, axis: int | None = None, *, dim: int | None = None) -> Value:
    """Return the value with a dimension of size 1 that is dimension `axis` of the result."""
    with refusing("unsqueeze", x):
        chosen = choose_axis(axis, dim)
        if chosen is None:
            raise GraphError("the axis is not given", hint="`axis=-1` is the last")
    return apply("unsqueeze", x, axis=chosen)


def infer(x: TensorType, *, axis: int) -> TensorType:
    """Return the type with the dimension."""
    place = axis_of(x.rank + 1, axis)
    return replace(x, shape=Shape([*x.shape[:place], 1, *x.shape[place:]]))


def lower(x: Tensor, *, axis: int) -> Tensor:
    """Return a view; nothing is copied."""
    return x.unsqueeze(axis)
