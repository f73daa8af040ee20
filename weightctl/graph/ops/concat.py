"""Values one after another along a dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.ops.rules import axis_of, choose_axis, same_dtype
from weightctl.graph.ops.unsqueeze import unsqueeze
from weightctl.graph.scope import refusing
from weightctl.graph.value import apply
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["concat", "infer", "lower", "stack"]


def concat(
    values: Sequence[ValueLike], axis: int | None = None, *, dim: int | None = None
) -> Value:
    """Return the values one after another along `axis` (0), whose sizes add up, also as names.

    Raises `GraphError` unless dtypes, and all other dimensions, are equal.
    """
    with refusing("concat", values=values):
        given = tuple(values)
        chosen = choose_axis(axis, dim)
    return apply("concat", *given, axis=0 if chosen is None else chosen)


def stack(values: Sequence[ValueLike], axis: int | None = None, *, dim: int | None = None) -> Value:
    """Return the values one after another along a new dimension, which is `axis` (0) of the result.

    Raises `GraphError` unless dtypes and shapes are equal.
    """
    with refusing("stack", values=values):
        chosen = choose_axis(axis, dim) or 0
        rows = [unsqueeze(value, chosen) for value in values]
    return concat(rows, chosen)


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
