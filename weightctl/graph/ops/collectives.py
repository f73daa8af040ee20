"""Collective operations on the tensors of all ranks, and transfers between devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.graph import apply, apply_all
from weightctl.graph.ops.exchange import (
    count_ranks,
    find_first_rank,
    gather_tensors,
    require_ranks,
    sum_ranks,
)
from weightctl.graph.ops.lowering import torch_device
from weightctl.graph.ops.rules import Op, require_number, require_same_dtype, resolve_axis
from weightctl.graph.ops.slicing import infer_concat
from weightctl.graph.scope import refusing, sizing
from weightctl.shape import Dim, Shape
from weightctl.split import shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from weightctl.device import DeviceLike, DeviceRef
    from weightctl.graph.graph import Value, ValueLike
    from weightctl.graph.types import TensorType
    from weightctl.shape import ShapeLike


def allreduce(
    values: Sequence[ValueLike], *, ranks: int | None = None, first: int | None = None
) -> list[Value]:
    """Return the sum of all ranks' values, once for each rank of this process, on its device.

    With more `ranks` than values, the other ranks are in other processes, with the same number in
    each; the processes must have joined a process group. A graph with `first` is the graph of the
    process whose first rank is `first`, and does not run in another. Values of one process are
    added in the order of ranks. Floats of several processes are added in float32, in the order that
    the backend of the process group chooses, unless `processes` has `in_order`. Raises `GraphError`
    unless dtypes and shapes are equal.
    """
    with refusing("allreduce", values=values):
        given = tuple(values)
    return list(apply_all(ALLREDUCE, *given, ranks=ranks, first=first))


def infer_allreduce(
    *values: TensorType, ranks: int | None, first: int | None
) -> tuple[TensorType, ...]:
    """Return the types of the values."""
    require_ranks(values, ranks, first)
    _require_same_shape(values)
    return values


def lower_allreduce(*values: Tensor, ranks: int | None, first: int | None) -> tuple[Tensor, ...]:
    """Return the sum on each device."""
    total = sum_ranks("allreduce", values, count_ranks(values, ranks), first=first)
    return tuple(total.to(value.device) for value in values)


ALLREDUCE = Op("allreduce", infer_allreduce, lower_allreduce, crosses_devices=True)


def allgather(
    values: Sequence[ValueLike],
    axis: int = -1,
    *,
    sizes: ShapeLike | None = None,
    ranks: int | None = None,
    first: int | None = None,
) -> list[Value]:
    """Return all ranks' values concatenated, once for each rank of this process, on its device.

    With more `ranks` than values, the other ranks are in other processes, as for `allreduce`, and
    `sizes` has the size of every rank's value along `axis`. Raises `GraphError` unless dtypes, and
    all other dimensions, are equal.
    """
    with refusing("allgather", values=values):
        given = tuple(values)
    with sizing("allgather", *given):
        parts = None if sizes is None else Shape(sizes)
    return list(apply_all(ALLGATHER, *given, axis=axis, sizes=parts, ranks=ranks, first=first))


def infer_allgather(
    *values: TensorType, axis: int, sizes: Shape | None, ranks: int | None, first: int | None
) -> tuple[TensorType, ...]:
    """Return the concatenated type, on each device."""
    count = require_ranks(values, ranks, first)
    joined = infer_concat(*values, axis=axis)
    place = resolve_axis(joined.rank, axis)
    if sizes is None:
        if count > len(values):
            raise GraphError(
                f"the sizes for the {count - len(values)} ranks in other processes are missing",
                hint="pass `sizes`, with the size of every rank along the axis",
            )
        sizes = Shape([value.shape[place] for value in values])
    own = [value.shape[place] for value in values]
    starts = range(0, count, len(values)) if first is None else [first]
    if len(sizes) != count or own not in [[*sizes[at : at + len(own)]] for at in starts]:
        raise GraphError(
            f"sizes {sizes.text} do not fit: there are {count} ranks, and the values in this "
            f"process have sizes {Shape(own).text}",
            hint="give one size per rank, in order",
        )
    total = sum(sizes, start=Dim(0))
    shape = Shape([*joined.shape[:place], total, *joined.shape[place + 1 :]])
    return tuple(replace(value, shape=shape) for value in values)


def lower_allgather(
    *values: Tensor,
    axis: int,
    sizes: tuple[int, ...] | None,
    ranks: int | None,
    first: int | None,
) -> tuple[Tensor, ...]:
    """Return a copy of the concatenation on each device."""
    import torch

    own = list(values[0].shape)
    axis %= len(own)
    along = sizes or [value.shape[axis] for value in values]
    shapes = [(*own[:axis], size, *own[axis + 1 :]) for size in along]
    found = gather_tensors("allgather", values, count_ranks(values, ranks), shapes, first=first)
    whole = torch.cat([each.to(values[0].device) for each in found], dim=axis)
    return tuple(whole.to(value.device) for value in values)


ALLGATHER = Op("allgather", infer_allgather, lower_allgather, crosses_devices=True)


def reduce_scatter(
    values: Sequence[ValueLike],
    axis: int = -1,
    *,
    sizes: ShapeLike | None = None,
    ranks: int | None = None,
    first: int | None = None,
) -> list[Value]:
    """Return the shard of the sum along `axis` for each rank of this process, on its device.

    With more `ranks` than values, the other ranks are in other processes, as for `allreduce`, and
    `first` is the number of the first rank of this process; it may be left out if all shards have
    the same size. `sizes` are the sizes of all ranks' shards; by default the dimension is divided
    evenly, and the first ranks get one more. Raises `GraphError` unless dtypes and shapes are equal
    and the sizes add up to the dimension.
    """
    with refusing("reduce_scatter", values=values):
        given = tuple(values)
    with sizing("reduce_scatter", *given):
        parts = None if sizes is None else Shape(sizes)
    return list(apply_all(REDUCE_SCATTER, *given, axis=axis, sizes=parts, ranks=ranks, first=first))


def infer_reduce_scatter(
    *values: TensorType, axis: int, sizes: Shape | None, ranks: int | None, first: int | None
) -> tuple[TensorType, ...]:
    """Return the type of each shard."""
    count = require_ranks(values, ranks, first)
    _require_same_shape(values)
    shape = values[0].shape
    place = resolve_axis(len(shape), axis)
    if sizes is None:
        sizes = _divide_evenly(shape[place], count)
    if len(sizes) != count or sum(sizes, start=Dim(0)) != shape[place]:
        raise GraphError(
            f"the sizes {sizes.text} do not split a dimension of {shape[place]} into {count} "
            "shards",
            hint=f"give one size per rank, in order; together they must be {shape[place]}",
        )
    if first is None:
        if count > len(values) and any(size != sizes[0] for size in sizes):
            raise GraphError(
                f"the shard sizes {sizes.text} differ, so `first` is required",
                hint="pass `first=`, the number of the first rank of this process",
            )
        first = 0
    return tuple(
        replace(value, shape=Shape([*shape[:place], size, *shape[place + 1 :]]))
        for value, size in zip(values, sizes[first:], strict=False)
    )


def lower_reduce_scatter(
    *values: Tensor,
    axis: int,
    sizes: tuple[int, ...] | None,
    ranks: int | None,
    first: int | None,
) -> tuple[Tensor, ...]:
    """Return views of the sum, on each device."""
    import torch

    count = count_ranks(values, ranks)
    own = find_first_rank(len(values), count)
    shape = values[0].shape
    total = sum_ranks("reduce_scatter", values, count, first=first)
    along = sizes or [stop - start for start, stop in shares(shape[axis], count)]
    parts = torch.split(total, list(along), dim=axis)
    return tuple(part.to(value.device) for part, value in zip(parts[own:], values, strict=False))


REDUCE_SCATTER = Op(
    "reduce_scatter", infer_reduce_scatter, lower_reduce_scatter, crosses_devices=True
)


def transfer_to(x: ValueLike, device: DeviceLike) -> Value:
    """Return the operand on a device; it is not copied if it is already there."""
    return apply(TRANSFER_TO, x, device=device)


def infer_transfer_to(x: TensorType, *, device: DeviceRef) -> TensorType:
    """Return the type with the other device."""
    return replace(x, device=device)


def lower_transfer_to(x: Tensor, *, device: DeviceRef) -> Tensor:
    """Return a copy on the device, or the operand itself if it is already there."""
    return x.to(torch_device(device))


TRANSFER_TO = Op("transfer_to", infer_transfer_to, lower_transfer_to)


def _require_same_shape(values: Sequence[TensorType]) -> None:
    """Raise `GraphError` unless the values are numeric and have the same dtype and shape."""
    require_same_dtype(*values)
    require_number(*values)
    if any(value.shape != values[0].shape for value in values):
        raise GraphError(
            "the tensors of the ranks have different shapes",
            hint="use a tensor of the same shape on each rank",
        )


def _divide_evenly(size: Dim, count: int) -> Shape:
    """Return the sizes of the shards; the first ones get one more."""
    if not size.is_static:
        raise GraphError(
            f"the dimension `{size}` cannot be divided evenly among {count} ranks, because its "
            "size is not defined yet",
            hint=f"pass `sizes`: one expression for each rank, with the sum `{size}`",
        )
    return Shape([stop - start for start, stop in shares(int(size), count)])
