"""Elements by their numbers along a dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.graph.ops.bounds import require_inside
from weightctl.graph.ops.rules import axis_of, choose_axis, require_integer
from weightctl.graph.scope import refusing
from weightctl.graph.value import apply
from weightctl.shape import Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["gather", "infer", "lower"]


def gather(
    x: ValueLike, indices: ValueLike, axis: int | None = None, *, dim: int | None = None
) -> Value:
    """Return the elements of dimension `axis` (0) at `indices`, as `numpy.take` does.

    The dimensions of `indices` stand in the place of `axis`; negative numbers count from the end.
    """
    with refusing("gather", x, indices):
        chosen = choose_axis(axis, dim)
    return apply("gather", x, indices, axis=0 if chosen is None else chosen)


def infer(x: TensorType, indices: TensorType, *, axis: int) -> TensorType:
    """Return the type with the dimensions of `indices` in the place of `axis`."""
    require_integer(indices)
    place = axis_of(x.rank, axis)
    return replace(x, shape=Shape([*x.shape[:place], *indices.shape, *x.shape[place + 1 :]]))


def lower(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    """Return a copy; `EngineError` for a number that is out of bounds."""
    require_inside(indices, x.shape[axis], from_end=True)
    # As int64, since torch takes uint8 for a mask.
    before: list[slice | Tensor] = [slice(None)] * (axis % x.dim())
    return x[(*before, indices.long())]
