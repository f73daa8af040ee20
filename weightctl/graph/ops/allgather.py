"""What all ranks have, one after another, for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.ops.across_ranks import from_everywhere, ranks_of, require_ranks
from weightctl.graph.ops.rules import axis_of
from weightctl.graph.scope import refusing, sizing
from weightctl.graph.value import apply_all
from weightctl.shape import Dim, Shape
from weightctl.system.registry import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike
    from weightctl.shape import ShapeLike

__all__ = ["CROSSES_DEVICES", "allgather", "infer", "lower"]

CROSSES_DEVICES = True


def allgather(
    values: Sequence[ValueLike],
    axis: int = -1,
    *,
    sizes: ShapeLike | None = None,
    ranks: int | None = None,
    first: int | None = None,
) -> list[Value]:
    """Return the ranks' values one after another for each rank here, on the device of its own.

    Of more `ranks` than values the others are in other processes, as `allreduce` has them, and
    `sizes` are those of all ranks along `axis`. Raises `GraphError` unless dtypes, and all other
    dimensions, are equal.
    """
    with refusing("allgather", values=values):
        given = tuple(values)
    with sizing("allgather", *given):
        parts = None if sizes is None else Shape(sizes)
    return list(apply_all("allgather", *given, axis=axis, sizes=parts, ranks=ranks, first=first))


def infer(
    *values: TensorType, axis: int, sizes: Shape | None, ranks: int | None, first: int | None
) -> tuple[TensorType, ...]:
    """Return the type of all together on each device."""
    count = require_ranks(values, ranks, first)
    joined: TensorType = load("weightctl.graph.ops.concat").infer(*values, axis=axis)
    place = axis_of(joined.rank, axis)
    if sizes is None:
        if count > len(values):
            raise GraphError(
                f"nothing says the sizes of {count - len(values)} ranks that are elsewhere",
                hint="`sizes` are those of all ranks along the axis",
            )
        sizes = Shape([value.shape[place] for value in values])
    own = [value.shape[place] for value in values]
    starts = range(0, count, len(values)) if first is None else [first]
    if len(sizes) != count or own not in [[*sizes[at : at + len(own)]] for at in starts]:
        raise GraphError(
            f"sizes {sizes.text} are not those of {count} ranks with {Shape(own).text} here",
            hint="one for each rank, in their order",
        )
    total = sum(sizes, start=Dim(0))
    shape = Shape([*joined.shape[:place], total, *joined.shape[place + 1 :]])
    return tuple(replace(value, shape=shape) for value in values)


def lower(
    *values: Tensor,
    axis: int,
    sizes: tuple[int, ...] | None,
    ranks: int | None,
    first: int | None,
) -> tuple[Tensor, ...]:
    """Return a copy of all on each device."""
    import torch

    own = list(values[0].shape)
    axis %= len(own)
    along = sizes or [value.shape[axis] for value in values]
    shapes = [(*own[:axis], size, *own[axis + 1 :]) for size in along]
    found = from_everywhere("allgather", values, ranks_of(values, ranks), shapes, first=first)
    whole = torch.cat([each.to(values[0].device) for each in found], dim=axis)
    return tuple(whole.to(value.device) for value in values)
