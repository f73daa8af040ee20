"""Slices, splits and joins of tensors along dimensions."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from operator import index as integer
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, cast

from weightctl.errors import EngineError, GraphError
from weightctl.graph.ops.quantized import to_numbers
from weightctl.graph.ops.rules import Op, choose_axis, require_same_dtype, resolve_axis
from weightctl.graph.ops.shape import unsqueeze
from weightctl.graph.scope import refusing, sizing
from weightctl.graph.value import apply, apply_all
from weightctl.shape import Dim, Shape
from weightctl.text.untyped import is_slice, is_tuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike
    from weightctl.shape import ShapeLike

__all__ = [
    "CONCAT", "SLICE", "SPLIT", "chunk", "concat", "infer_concat", "slice_tensor", "split", "stack",
]  # fmt: skip


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


def infer_concat(*values: TensorType, axis: int) -> TensorType:
    """Return the type of them all together."""
    if not values:
        raise GraphError("the list of values is empty", hint="give at least one value")
    first = values[0]
    require_same_dtype(*values)
    place = resolve_axis(first.rank, axis)
    total = Dim(0)
    for value in values:
        if value.rank != first.rank or _list_others(value, place) != _list_others(first, place):
            raise GraphError(
                f"the shapes of the values differ along an axis other than {axis}",
                hint="reshape or broadcast them first",
            )
        total += value.shape[place]
    return replace(first, shape=Shape([*first.shape[:place], total, *first.shape[place + 1 :]]))


def lower_concat(*values: Tensor, axis: int) -> Tensor:
    """Return a copy."""
    import torch

    return torch.cat(values, dim=axis)


CONCAT = Op("concat", infer_concat, lower_concat)


def _list_others(value: TensorType, place: int) -> tuple[Dim, ...]:
    """Return the dimensions but for one."""
    return (*value.shape[:place], *value.shape[place + 1 :])


def split(
    x: ValueLike, sizes: ShapeLike, axis: int | None = None, *, dim: int | None = None
) -> tuple[Value, ...]:
    """Return the parts of these sizes along `axis` (0), in order.

    Raises `GraphError` unless the sizes add up to the dimension, whatever names represent.
    """
    with sizing("split", x):
        parts = Shape(sizes)
        chosen = choose_axis(axis, dim)
    return apply_all("split", x, sizes=parts, axis=0 if chosen is None else chosen)


def chunk(
    x: ValueLike, chunks: int, axis: int | None = None, *, dim: int | None = None
) -> tuple[Value, ...]:
    """Return `chunks` parts along `axis` (0): as long as can be but for the last, as torch's.

    There are fewer where the size does not suffice. Raises `GraphError` for a size that is only a
    name, and for no chunks.
    """
    value = to_numbers(x)
    with refusing("chunk", value):
        place = resolve_axis(value.rank, choose_axis(axis, dim) or 0)
        if not value.shape[place].is_static:
            raise GraphError(
                f"dimension {place} is {value.shape[place]}, so the sizes of its chunks "
                "are not defined",
                hint="use `ops.split`, which accepts named sizes",
            )
        # It may be anything: a caller's types are not checked.
        count: Any = chunks
        if not isinstance(count, SupportsIndex) or integer(count) < 1:
            raise GraphError(
                f"the number of chunks cannot be {chunks!r}", hint="use an integer of at least 1"
            )
        size = int(value.shape[place])
        length = max(-(-size // integer(chunks)), 1)
        sizes = [min(length, size - start) for start in range(0, size, length)] or [0]
    return split(value, sizes, place)


def infer_split(x: TensorType, *, sizes: Shape, axis: int) -> tuple[TensorType, ...]:
    """Return a type for each part."""
    place = resolve_axis(x.rank, axis)
    total = Dim(0)
    for size in sizes:
        total += size
    if not sizes or total != x.shape[place]:
        raise GraphError(
            f"sizes {sizes.text} add up to {total}, but dimension {axis} is {x.shape[place]}",
            hint="the last size can be written as the dimension minus the other sizes",
        )
    before, after = x.shape[:place], x.shape[place + 1 :]
    return tuple(replace(x, shape=Shape([*before, size, *after])) for size in sizes)


def lower_split(x: Tensor, *, sizes: tuple[int, ...], axis: int) -> tuple[Tensor, ...]:
    """Return views; nothing is copied."""
    import torch

    return torch.split(x, list(sizes), dim=axis)


SPLIT = Op("split", infer_split, lower_split)


_Bound: TypeAlias = "int | Dim"
# A slice is (start, stop, step); the other items are what Python has.
_Slice: TypeAlias = "tuple[_Bound, _Bound | None, int]"
_Item: TypeAlias = "_Bound | _Slice | None"

_WHOLE: _Slice = (0, None, 1)


def slice_tensor(x: ValueLike, index: Any) -> Value:
    """Return `x[index]` for integers, slices with positive steps, None, and an Ellipsis.

    Integers and bounds may be negative or a `Dim`. Bounds beyond a dimension of fixed size are
    clamped, as in Python. A dimension with a name is assumed to reach as far as the bounds: of
    [seq], `x[:5]` is [5] and `x[1:]` is [seq - 1], and a graph that is run with a shorter one
    raises `EngineError`. Raises `GraphError` for an integer that is out of bounds, more items than
    dimensions, and items of other types.
    """
    value = to_numbers(x)
    given = index if is_tuple(index) else (index,)
    items = tuple(_record_item(item) for item in given)
    with suppress(GraphError):  # `infer_slice` raises it again, and says of what
        items = _clamp_slices(_expand_ellipsis(items, value.rank), value.shape)
    return apply("slice", value, index=items)


def infer_slice(x: TensorType, *, index: tuple[Any, ...]) -> TensorType:
    """Return the type of the part."""
    sizes = iter(x.shape)
    result: list[Dim] = []
    for item in _expand_ellipsis(index, x.rank):
        if item is None:
            result.append(Dim(1))
        elif isinstance(item, tuple):
            result.append(_count_elements(item, next(sizes)))
        else:
            _require_index_inside(item, next(sizes))
    return replace(x, shape=Shape(result))


def lower_slice(x: Tensor, *, index: tuple[Any, ...]) -> Tensor:
    """Return a view; nothing is copied."""
    sizes = iter(x.shape)
    items = _expand_ellipsis(index, x.dim())
    return x[tuple(item if item is None else _to_torch_index(item, next(sizes)) for item in items)]


SLICE = Op("slice", infer_slice, lower_slice)


def _record_item(item: Any) -> Any:
    """Return an item in the form that an attribute has; what is not an index stays as it is."""
    if is_tuple(item):
        return list(item)  # a tuple would be taken for a slice
    if not is_slice(item):
        return _read_integer(item)
    start = 0 if item.start is None else _read_integer(item.start)
    stop = None if item.stop is None else _read_integer(item.stop)
    return (start, stop, 1 if item.step is None else _read_integer(item.step))


def _read_integer(item: Any) -> Any:
    """Return an item as an integer or `Dim` where it is one, else as it is."""
    if isinstance(item, Dim):
        return int(item) if item.is_static else item
    if isinstance(item, bool) or not hasattr(item, "__index__"):
        return item
    try:
        return integer(item)
    except TypeError:  # an array of several
        return item


def _expand_ellipsis(index: Sequence[Any], rank: int) -> tuple[_Item, ...]:
    """Put whole dimensions in the place of an Ellipsis, or at the end, and check all types."""
    for item in index:
        if not _is_item(item):
            raise GraphError(
                f"{item!r} is not a valid index",
                hint="use an integer, a slice with a positive step, None, or `...`; to use "
                "tensors as indices, use `ops.embedding`",
            )
    missing = rank - sum(1 for item in index if item is not None and item is not ...)
    places = [place for place, item in enumerate(index) if item is ...] or [len(index)]
    if missing < 0:
        raise GraphError(f"{rank - missing} indices are too many for {rank} dimensions")
    if len(places) > 1:
        raise GraphError("an index can have only one `...`")
    (place,) = places
    return (*index[:place], *[_WHOLE] * missing, *index[place + 1 :])


def _is_item(item: Any) -> bool:
    """Whether an item of an index is one that slices take."""
    if is_tuple(item):
        start, stop, step = item
        bounds = _is_bound(start) and (stop is None or _is_bound(stop))
        return bounds and isinstance(step, int) and step > 0
    return item is None or item is ... or _is_bound(item)


def _is_bound(item: Any) -> bool:
    """Whether an item is an integer or a `Dim`."""
    return isinstance(item, int | Dim) and not isinstance(item, bool)


def _clamp_slices(items: Sequence[_Item], shape: Shape) -> tuple[_Item, ...]:
    """Bring the bounds of slices inside the dimensions whose sizes are known."""
    sizes = iter(shape)
    result: list[_Item] = []
    for item in items:
        size = None if item is None else next(sizes)
        if size is not None and size.is_static and isinstance(item, tuple):
            start, stop, step = item
            if isinstance(start, int) and not isinstance(stop, Dim):
                first, last, _ = slice(start, stop, step).indices(int(size))
                item = (first, max(first, last), step)  # noqa: PLW2901  # the same, said better
        result.append(item)
    return tuple(result)


def _count_elements(item: _Slice, size: Dim) -> Dim:
    """Return how many elements a slice has of a dimension."""
    start, stop, step = item
    try:
        distance = _locate(size if stop is None else stop, size) - _locate(start, size)
    except ValueError:  # less than 0, whatever the names stand for
        return Dim(0)
    return (distance + (step - 1)) // step


def _locate(bound: _Bound, size: Dim) -> Dim:
    """Return the distance of a bound from the start of a dimension."""
    return size + bound if isinstance(bound, int) and bound < 0 else Dim(bound)


def _require_index_inside(item: _Bound, size: Dim) -> None:
    """Raise `GraphError` for an integer that is out of bounds of a known size."""
    if isinstance(item, int) and size.is_static and not -int(size) <= item < int(size):
        raise GraphError(
            f"index {item} is out of bounds for a dimension of {size}",
            hint=f"use an index from {-int(size)} to {int(size) - 1}"
            if int(size)
            else "the dimension is empty",
        )


def _to_torch_index(item: Any, size: int) -> int | slice:
    """Return an item as torch takes it, unless the graph has promised what is not there."""
    if isinstance(item, int):
        if not -size <= item < size:
            raise EngineError(
                f"index {item} is out of bounds for a dimension of {size}",
                hint="run the graph with a longer input",
            )
        return item
    # What the engine gives is resolved, and no None, which `lower_slice` keeps to itself.
    start, stop, step = cast("tuple[int, int | None, int]", item)
    first = start + size if start < 0 else start
    last = size if stop is None else stop + size if stop < 0 else stop
    found = slice(start, stop, step)
    if last > first and not 0 <= first < last <= size:
        raise EngineError(
            f"elements {first} to {last} are out of bounds for a dimension of {size}",
            hint="run the graph with a longer input",
        )
    return found
