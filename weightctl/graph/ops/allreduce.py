"""The sum of what all ranks have, for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.ops.across_ranks import from_everywhere, ranks_of, require_ranks, sum_in_order
from weightctl.graph.ops.rules import require_number, same_dtype
from weightctl.graph.scope import refusing
from weightctl.graph.value import apply_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["CROSSES_DEVICES", "allreduce", "infer", "lower", "same_shape"]

CROSSES_DEVICES = True


def allreduce(
    values: Sequence[ValueLike], *, ranks: int | None = None, first: int | None = None
) -> list[Value]:
    """Return the sum of the ranks' values for each rank that is here, on the device of its own.

    Of more `ranks` than values the others are in other processes, as many in each, and what runs
    the graph has joined them; a graph that says which is the `first` here is not run in the place
    of another's. It is summed in the order of ranks, so that it is always the same. Raises
    `GraphError` unless dtypes and shapes are equal.
    """
    with refusing("allreduce", values=values):
        given = tuple(values)
    return list(apply_all("allreduce", *given, ranks=ranks, first=first))


def infer(*values: TensorType, ranks: int | None, first: int | None) -> tuple[TensorType, ...]:
    """Return the types themselves."""
    require_ranks(values, ranks, first)
    same_shape(values)
    return values


def lower(*values: Tensor, ranks: int | None, first: int | None) -> tuple[Tensor, ...]:
    """Return the sum on each device."""
    shape = values[0].shape
    count = ranks_of(values, ranks)
    total = sum_in_order(from_everywhere("allreduce", values, count, [shape] * count, first=first))
    return tuple(total.to(value.device) for value in values)


def same_shape(values: Sequence[TensorType]) -> None:
    """Raise `GraphError` unless values are numbers of one dtype and shape."""
    same_dtype(*values)
    require_number(*values)
    if any(value.shape != values[0].shape for value in values):
        raise GraphError(
            "their shapes are not equal", hint="each rank has a summand of every element"
        )
