"""Two dimensions exchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.graph.ops.rules import axis_of
from weightctl.graph.value import apply
from weightctl.shape import Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["infer", "lower", "transpose"]


def transpose(x: ValueLike, axis_1: int, axis_2: int) -> Value:
    """Return the value with two of its dimensions exchanged; negative axes count from the last."""
    return apply("transpose", x, axis_1=axis_1, axis_2=axis_2)


def infer(x: TensorType, *, axis_1: int, axis_2: int) -> TensorType:
    """Return the type with the two dimensions exchanged."""
    first, second = axis_of(x.rank, axis_1), axis_of(x.rank, axis_2)
    dims = list(x.shape)
    dims[first], dims[second] = dims[second], dims[first]
    return replace(x, shape=Shape(dims))


def lower(x: Tensor, *, axis_1: int, axis_2: int) -> Tensor:
    """Return a view; nothing is copied."""
    return x.transpose(axis_1, axis_2)
