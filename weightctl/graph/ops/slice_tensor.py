"""Parts of a value by Python's indexing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from operator import index as integer
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from weightctl.errors import EngineError, GraphError
from weightctl.graph.ops.dequantize import numbers_of
from weightctl.graph.value import apply
from weightctl.shape import Dim, Shape
from weightctl.text.untyped import is_slice, is_tuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["infer", "lower", "slice_tensor"]

_Bound: TypeAlias = "int | Dim"
# A slice is (start, stop, step); the other items are what Python has.
_Slice: TypeAlias = "tuple[_Bound, _Bound | None, int]"
_Item: TypeAlias = "_Bound | _Slice | None"

_WHOLE: _Slice = (0, None, 1)


def slice_tensor(x: ValueLike, index: Any) -> Value:
    """Return `x[index]` for integers, slices with positive steps, None, and an Ellipsis.

    Integers and bounds may be negative or a `Dim`. Bounds beyond a dimension whose size is known
    are clamped, as Python does. A dimension with a name is taken to reach as far as the bounds say:
    of [seq], `x[:5]` is [5] and `x[1:]` is [seq - 1], and a graph that is run with a shorter one
    raises `EngineError`. Raises `GraphError` for an integer that is out of bounds, more items than
    dimensions, and items of other types.
    """
    value = numbers_of(x)
    given = index if is_tuple(index) else (index,)
    items = tuple(_record_item(item) for item in given)
    with suppress(GraphError):  # `infer` raises it again, and says of what
        items = _clamp_slices(_expand_ellipsis(items, value.rank), value.shape)
    return apply("slice", value, index=items)


def infer(x: TensorType, *, index: tuple[Any, ...]) -> TensorType:
    """Return the type of the part."""
    sizes = iter(x.shape)
    result: list[Dim] = []
    for item in _expand_ellipsis(index, x.rank):
        if item is None:
            result.append(Dim(1))
        elif isinstance(item, tuple):
            result.append(_length(item, next(sizes)))
        else:
            _require_inside(item, next(sizes))
    return replace(x, shape=Shape(result))


def lower(x: Tensor, *, index: tuple[Any, ...]) -> Tensor:
    """Return a view; nothing is copied."""
    sizes = iter(x.shape)
    items = _expand_ellipsis(index, x.dim())
    return x[tuple(item if item is None else _to_torch_index(item, next(sizes)) for item in items)]


def _record_item(item: Any) -> Any:
    """Return an item in the form that an attribute has; what is no index stays as it is."""
    if is_tuple(item):
        return list(item)  # a tuple would be taken for a slice
    if not is_slice(item):
        return _number(item)
    start = 0 if item.start is None else _number(item.start)
    stop = None if item.stop is None else _number(item.stop)
    return (start, stop, 1 if item.step is None else _number(item.step))


def _number(item: Any) -> Any:
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
                f"{item!r} is no index",
                hint="an integer, a slice with a step above 0, None, or `...`; "
                "`ops.gather` takes numbers that are values",
            )
    missing = rank - sum(1 for item in index if item is not None and item is not ...)
    places = [place for place, item in enumerate(index) if item is ...] or [len(index)]
    if missing < 0:
        raise GraphError(f"there are {rank - missing} indices for {rank} dimensions")
    if len(places) > 1:
        raise GraphError("an index has at most one `...`")
    (place,) = places
    return (*index[:place], *[_WHOLE] * missing, *index[place + 1 :])


def _is_item(item: Any) -> bool:
    if is_tuple(item):
        start, stop, step = item
        bounds = _is_bound(start) and (stop is None or _is_bound(stop))
        return bounds and isinstance(step, int) and step > 0
    return item is None or item is ... or _is_bound(item)


def _is_bound(item: Any) -> bool:
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


def _length(item: _Slice, size: Dim) -> Dim:
    start, stop, step = item
    try:
        distance = _place(size if stop is None else stop, size) - _place(start, size)
    except ValueError:  # less than 0, whatever the names stand for
        return Dim(0)
    return (distance + (step - 1)) // step


def _place(bound: _Bound, size: Dim) -> Dim:
    """Return the distance of a bound from the start of a dimension."""
    return size + bound if isinstance(bound, int) and bound < 0 else Dim(bound)


def _require_inside(item: _Bound, size: Dim) -> None:
    if isinstance(item, int) and size.is_static and not -int(size) <= item < int(size):
        raise GraphError(
            f"index {item} is out of bounds for a dimension of {size}",
            hint=f"{-int(size)} to {int(size) - 1}" if int(size) else "it has no elements",
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
    # What the engine gives is resolved, and no None, which `lower` keeps to itself.
    start, stop, step = cast("tuple[int, int | None, int]", item)
    first = start + size if start < 0 else start
    last = size if stop is None else stop + size if stop < 0 else stop
    found = slice(start, stop, step)
    if last > first and not 0 <= first < last <= size:
        raise EngineError(
            f"elements {first} to {last} were asked of a dimension of {size}",
            hint="run the graph with a longer input",
        )
    return found
