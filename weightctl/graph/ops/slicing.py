"""Indexing, splitting and concatenation along dimensions."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from operator import index as integer
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, cast

from weightctl.errors import EngineError, GraphError
from weightctl.graph.graph import apply, apply_all
from weightctl.graph.ops.quantized import dequantize_value
from weightctl.graph.ops.rules import Op, choose_axis, require_same_dtype, resolve_axis
from weightctl.graph.ops.shape import unsqueeze
from weightctl.graph.scope import refusing, sizing
from weightctl.shape import Dim, Shape
from weightctl.text.untyped import is_slice, is_tuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from weightctl.graph.graph import Value, ValueLike
    from weightctl.graph.types import TensorType
    from weightctl.shape import ShapeLike


def concat(
    values: Sequence[ValueLike], axis: int | None = None, *, dim: int | None = None
) -> Value:
    """Return the values concatenated along `axis` (default 0); sizes add up, also named ones.

    Raises `GraphError` unless dtypes, and all other dimensions, are equal.
    """
    with refusing("concat", values=values):
        given = tuple(values)
        chosen = choose_axis(axis, dim)
    return apply(CONCAT, *given, axis=0 if chosen is None else chosen)


def stack(values: Sequence[ValueLike], axis: int | None = None, *, dim: int | None = None) -> Value:
    """Return the values stacked along a new dimension, which is `axis` (default 0) of the result.

    Raises `GraphError` unless dtypes and shapes are equal.
    """
    with refusing("stack", values=values):
        chosen = choose_axis(axis, dim) or 0
        rows = [unsqueeze(value, chosen) for value in values]
    return concat(rows, chosen)


def infer_concat(*values: TensorType, axis: int) -> TensorType:
    """Return the type of the concatenation."""
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
    import torch

    return torch.cat(values, dim=axis)


CONCAT = Op("concat", infer_concat, lower_concat)


def _list_others(value: TensorType, place: int) -> tuple[Dim, ...]:
    return (*value.shape[:place], *value.shape[place + 1 :])


def split(
    x: ValueLike, sizes: ShapeLike, axis: int | None = None, *, dim: int | None = None
) -> tuple[Value, ...]:
    """Return consecutive parts of these sizes along `axis` (default 0).

    Raises `GraphError` unless the sizes add up to the dimension for all sizes of names.
    """
    with sizing("split", x):
        parts = Shape(sizes)
        chosen = choose_axis(axis, dim)
    return apply_all(SPLIT, x, sizes=parts, axis=0 if chosen is None else chosen)


def chunk(
    x: ValueLike, chunks: int, axis: int | None = None, *, dim: int | None = None
) -> tuple[Value, ...]:
    """Return up to `chunks` parts along `axis` (default 0), of equal size except the last.

    As in torch, there are fewer parts if the dimension is too small. Raises `GraphError` for a
    named dimension, and if `chunks` is less than 1.
    """
    value = dequantize_value(x)
    with refusing("chunk", value):
        place = resolve_axis(value.rank, choose_axis(axis, dim) or 0)
        if not value.shape[place].is_static:
            raise GraphError(
                f"dimension {place} is {value.shape[place]}, so the sizes of its chunks "
                "are not defined",
                hint="use `ops.split`, which accepts named sizes",
            )
        # The value may be of any type: a caller's types are not checked.
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
    """Return the type of each part."""
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
    import torch

    return torch.split(x, list(sizes), dim=axis)


SPLIT = Op("split", infer_split, lower_split)


_Bound: TypeAlias = "int | Dim"
# A slice is recorded as (start, stop, step); other items are recorded as they are.
_Slice: TypeAlias = "tuple[_Bound, _Bound | None, int]"
_Item: TypeAlias = "_Bound | _Slice | None"

_WHOLE: _Slice = (0, None, 1)


def slice_tensor(x: ValueLike, index: Any) -> Value:
    """Return `x[index]` for integers, slices with positive steps, None, and an Ellipsis.

    Integers and bounds may be negative or a `Dim`. Bounds beyond a dimension of fixed size are
    clamped, as in Python. A named dimension is assumed to be large enough for the bounds: for shape
    [seq], `x[:5]` is [5] and `x[1:]` is [seq - 1]. A run with a smaller size raises `EngineError`.
    Raises `GraphError` for an integer that is out of bounds, for more items than dimensions, and
    for items of other types.
    """
    value = dequantize_value(x)
    given = index if is_tuple(index) else (index,)
    items = tuple(_record_item(item) for item in given)
    with suppress(GraphError):  # `infer_slice` raises it again, with the type of the value
        items = _clamp_slices(_expand_ellipsis(items, value.rank), value.shape)
    return apply(SLICE, value, index=items)


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
    sizes = iter(x.shape)
    items = _expand_ellipsis(index, x.dim())
    return x[tuple(item if item is None else _to_torch_index(item, next(sizes)) for item in items)]


SLICE = Op("slice", infer_slice, lower_slice)


def _record_item(item: Any) -> Any:
    """Return an item as it is stored in attributes; an invalid index is returned unchanged."""
    if is_tuple(item):
        return list(item)  # tuples represent slices
    if not is_slice(item):
        return _read_integer(item)
    start = 0 if item.start is None else _read_integer(item.start)
    stop = None if item.stop is None else _read_integer(item.stop)
    return (start, stop, 1 if item.step is None else _read_integer(item.step))


def _read_integer(item: Any) -> Any:
    """Return an item as an integer or `Dim` if it is one, otherwise unchanged."""
    if isinstance(item, Dim):
        return int(item) if item.is_static else item
    if isinstance(item, bool) or not hasattr(item, "__index__"):
        return item
    try:
        return integer(item)
    except TypeError:  # an array with several elements
        return item


def _expand_ellipsis(index: Sequence[Any], rank: int) -> tuple[_Item, ...]:
    """Replace an Ellipsis, or the missing end, by whole dimensions, and check all types."""
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
    """Whether an item is a valid index."""
    if is_tuple(item):
        start, stop, step = item
        bounds = _is_bound(start) and (stop is None or _is_bound(stop))
        return bounds and isinstance(step, int) and step > 0
    return item is None or item is ... or _is_bound(item)


def _is_bound(item: Any) -> bool:
    """Whether an item is an integer or a `Dim`."""
    return isinstance(item, int | Dim) and not isinstance(item, bool)


def _clamp_slices(items: Sequence[_Item], shape: Shape) -> tuple[_Item, ...]:
    """Limit the bounds of slices to dimensions of fixed size."""
    sizes = iter(shape)
    result: list[_Item] = []
    for item in items:
        size = None if item is None else next(sizes)
        if size is not None and size.is_static and isinstance(item, tuple):
            start, stop, step = item
            if isinstance(start, int) and not isinstance(stop, Dim):
                first, last, _ = slice(start, stop, step).indices(int(size))
                item = (first, max(first, last), step)  # noqa: PLW2901  # the same slice
        result.append(item)
    return tuple(result)


def _count_elements(item: _Slice, size: Dim) -> Dim:
    """Return the number of elements that a slice selects from a dimension."""
    start, stop, step = item
    try:
        distance = _locate(size if stop is None else stop, size) - _locate(start, size)
    except ValueError:  # less than 0 for any sizes of the names
        return Dim(0)
    return (distance + (step - 1)) // step


def _locate(bound: _Bound, size: Dim) -> Dim:
    """Return the position of a bound, counted from the start of a dimension."""
    return size + bound if isinstance(bound, int) and bound < 0 else Dim(bound)


def _require_index_inside(item: _Bound, size: Dim) -> None:
    """Raise `GraphError` if an integer is out of bounds for a fixed size."""
    if isinstance(item, int) and size.is_static and not -int(size) <= item < int(size):
        raise GraphError(
            f"index {item} is out of bounds for a dimension of {size}",
            hint=f"use an index from {-int(size)} to {int(size) - 1}"
            if int(size)
            else "the dimension is empty",
        )


def _to_torch_index(item: Any, size: int) -> int | slice:
    """Return an item for torch; raises `EngineError` if it is outside the actual size."""
    if isinstance(item, int):
        if not -size <= item < size:
            raise EngineError(
                f"index {item} is out of bounds for a dimension of {size}",
                hint="run the graph with a longer input",
            )
        return item
    # The engine has resolved dimensions, and `lower_slice` does not pass None.
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
