"""Values one after another along a dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.ops.rules import axis_of, same_dtype
from weightctl.graph.scope import refusing
from weightctl.graph.value import apply
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["concat", "infer", "lower"]


def concat(values: Sequence[ValueLike], axis: int = 0) -> Value:
    """Return the values one after another along `axis`, whose sizes add up, also as names.

    Raises `GraphError` unless dtypes, and all other dimensions, are equal.
    """
    with refusing("concat", values=values):
        given = tuple(values)
    return apply("concat", *given, axis=axis)


def infer(*values: TensorType, axis: int) -> TensorType:
    """Return the type of them all together."""
    if not values:
        raise GraphError("there is nothing to join", hint="give at least one value")
    first = values[0]
    same_dtype(*values)
    place = axis_of(first.rank, axis)
    total = Dim(0)
    for value in values:
        if value.rank != first.rank or _others(value, place) != _others(first, place):
            raise GraphError(
                f"their dimensions differ in more than axis {axis}",
                hint="reshape or broadcast them first",
            )
        total += value.shape[place]
    return replace(first, shape=Shape([*first.shape[:place], total, *first.shape[place + 1 :]]))


def lower(*values: Tensor, axis: int) -> Tensor:
    """Return a copy."""
    import torch

    return torch.cat(values, dim=axis)


def _others(value: TensorType, place: int) -> tuple[Dim, ...]:
    return (*value.shape[:place], *value.shape[place + 1 :])
