"""The sum of what all ranks have, of which each gets its part."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.ops.across_ranks import (
    first_here,
    from_everywhere,
    ranks_of,
    require_ranks,
    sum_in_order,
)
from weightctl.graph.ops.allreduce import same_shape
from weightctl.graph.ops.rules import axis_of
from weightctl.graph.scope import refusing, sizing
from weightctl.graph.value import apply_all
from weightctl.shape import Dim, Shape
from weightctl.split import shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike
    from weightctl.shape import ShapeLike

__all__ = ["CROSSES_DEVICES", "infer", "lower", "reduce_scatter"]

CROSSES_DEVICES = True


def reduce_scatter(
    values: Sequence[ValueLike],
    axis: int = -1,
    *,
    sizes: ShapeLike | None = None,
    ranks: int | None = None,
    first: int | None = None,
) -> list[Value]:
    """Return for each rank that is here its part of the sum along `axis`, on its value's device.

    Of more `ranks` than values the others are in other processes, as `allreduce` has them, and
    `first` is the number of the first one here, which may be left out where all parts are of one
    size. `sizes` are those of all ranks' parts; without them the first ranks get one more. Raises
    `GraphError` unless dtypes and shapes are equal, and the sizes add up to the dimension.
    """
    with refusing("reduce_scatter", values=values):
        given = tuple(values)
    with sizing("reduce_scatter", *given):
        parts = None if sizes is None else Shape(sizes)
    return list(
        apply_all("reduce_scatter", *given, axis=axis, sizes=parts, ranks=ranks, first=first)
    )


def infer(
    *values: TensorType, axis: int, sizes: Shape | None, ranks: int | None, first: int | None
) -> tuple[TensorType, ...]:
    """Return the type of each part."""
    count = require_ranks(values, ranks, first)
    same_shape(values)
    shape = values[0].shape
    place = axis_of(len(shape), axis)
    if sizes is None:
        sizes = _divide_evenly(shape[place], count)
    if len(sizes) != count or sum(sizes, start=Dim(0)) != shape[place]:
        raise GraphError(
            f"sizes {sizes.text} are not those of {count} parts of {shape[place]}",
            hint="one for each rank, in their order",
        )
    if first is None:
        if count > len(values) and any(size != sizes[0] for size in sizes):
            raise GraphError(
                f"the parts {sizes.text} are not of one size, and nothing says which are here",
                hint="`first` is the number of the first rank in this process",
            )
        first = 0
    return tuple(
        replace(value, shape=Shape([*shape[:place], size, *shape[place + 1 :]]))
        for value, size in zip(values, sizes[first:], strict=False)
    )


def lower(
    *values: Tensor,
    axis: int,
    sizes: tuple[int, ...] | None,
    ranks: int | None,
    first: int | None,
) -> tuple[Tensor, ...]:
    """Return views of the sum, on each device."""
    import torch

    count = ranks_of(values, ranks)
    own = first_here(len(values), count)
    shape = values[0].shape
    total = sum_in_order(
        from_everywhere("reduce_scatter", values, count, [shape] * count, first=first)
    )
    along = sizes or [stop - start for start, stop in shares(shape[axis], count)]
    parts = torch.split(total, list(along), dim=axis)
    return tuple(part.to(value.device) for part, value in zip(parts[own:], values, strict=False))


def _divide_evenly(size: Dim, count: int) -> Shape:
    if not size.is_static:
        raise GraphError(
            f"{size} cannot be shared out among {count} ranks before it is known",
            hint="`sizes` may be arithmetic of names that adds up to it",
        )
    return Shape([stop - start for start, stop in shares(int(size), count)])
