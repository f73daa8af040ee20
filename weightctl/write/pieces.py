"""How the work on a tensor is cut: pieces that can be made side by side."""

from __future__ import annotations

from math import lcm, prod
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError
from weightctl.weights.source import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.codecs.base import F32
    from weightctl.plan.plan import Item

__all__ = ["Chunk", "pieces_of", "spans_of"]

# Bytes of working memory per element that a codec may need (`tests/codecs` holds them to it).
_WORKING = 64
# So many that the share of the interpreter, a tenth of a millisecond for each piece, is small.
_MAX_ELEMENTS = 1 << 20
_MAX_COPY = 1 << 20
# However little memory there is to be.
_MIN_ELEMENTS = 1 << 12
_MIN_COPY = 1 << 16
# A signal waits no longer than one of these takes.
_MAX_SPAN = 32 << 20


class Chunk(NamedTuple):
    """A run of whole blocks of a tensor: where it starts and ends in the source, in bytes.

    It is laid out as rows of `row` bytes, and becomes `made` bytes. `importance` is one weight per
    column, or None.
    """

    item: Item
    start: int
    stop: int
    row: int
    made: int
    importance: F32 | None = None


def spans_of(whole: Span) -> Iterator[Span]:
    """Cut a range of a file."""
    end = whole.offset + whole.nbytes
    for offset in range(whole.offset, end, _MAX_SPAN):
        yield Span(whole.file, offset, min(_MAX_SPAN, end - offset))


def pieces_of(item: Item, room: int) -> Iterator[Chunk]:
    """Cut a tensor into runs of whole blocks of both encodings, each within `room` bytes.

    They are never so small that the interpreter would do most of the work. Importance is of
    columns, so with it the runs are whole rows of one matrix; blocks alone know no rows.
    """
    if item.is_copy:
        yield from _cut_copy(item, room)
        return
    if not item.source.size:
        return
    source, target = item.source.encoding, item.info.encoding
    unit = lcm(source.block, target.block) if item.importance is None else item.info.row
    wanted = max(min(_MAX_ELEMENTS, room // _WORKING), _MIN_ELEMENTS)
    step = max(wanted // unit, 1) * unit
    for first, last, importance in _runs(item):
        for start in range(first, last, step):
            elements = min(step, last - start)
            row = elements if importance is None else item.info.row
            begin = start // source.block * source.size
            yield Chunk(
                item,
                begin,
                begin + elements // source.block * source.size,
                row // source.block * source.size,
                elements // target.block * target.size,
                importance,
            )


def _cut_copy(item: Item, room: int) -> Iterator[Chunk]:
    # A change of byte order needs whole blocks; where blocks are unknown there is none.
    block = item.source.encoding.size if item.source.encoding.is_known else 1
    step = max(max(min(_MAX_COPY, room), _MIN_COPY) // block, 1) * block
    total = item.source.nbytes
    for start in range(0, total, step):
        stop = min(start + step, total)
        yield Chunk(item, start, stop, stop - start, stop - start)


def _runs(item: Item) -> Iterator[tuple[int, int, F32 | None]]:
    """The elements that share their importance, from the first to behind the last."""
    size, importance = item.source.size, item.importance
    if importance is None:
        yield 0, size, None
        return
    matrices = prod(item.info.shape[:-2])
    if importance.shape not in {(1, item.info.row), (matrices, item.info.row)}:
        raise ConversionError(
            f"`{item.info.name}` has importance of shape {importance.shape}, where "
            f"{(matrices, item.info.row)} belongs",
            hint="this is a fault of weightctl; please report it",
        )
    count = importance.shape[0]
    run = size // count
    for number in range(count):
        yield number * run, (number + 1) * run, item.importance_of(number)
