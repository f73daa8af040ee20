"""The parts that an object is uploaded in: bytes that are sent, and ranges the store copies.

Bytes that an object of the same store has already are copied by the store itself. Only the bytes
between such ranges, and those that make a part long enough, are sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.plan.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.formats.base import Layout
    from weightctl.sharding.plan import ShardPlan
    from weightctl.storage.base import Uploads
    from weightctl.storage.byte_range import FileRange

__all__ = ["ObjectPart", "cut_object", "list_copies", "list_gaps"]

# A store copies this within seconds; a part of many times this would look like a stalled request.
_LARGEST_COPY = 64 << 20
# A large object has this many parts at most that are copied.
_MOST_COPIES = 4_000


class ObjectPart(NamedTuple):
    """A part of an object, from `start` to `stop`, and the range that the store copies for it."""

    start: int
    stop: int
    source: FileRange | None = None


class _Copy(NamedTuple):
    """Bytes of an object, from `start`, that a range of another object has."""

    start: int
    source: FileRange

    @property
    def stop(self) -> int:
        return self.start + self.source.nbytes


def list_copies(
    plan: Plan | ShardPlan, layouts: Sequence[Layout], uploads: Uploads
) -> list[list[tuple[int, FileRange]]]:
    """Return, for each file, where it has bytes that the store can copy: offset and range.

    Ranges that follow one another in the source as in the file are one.
    """
    return [
        [(each.start, each.source) for each in _merge(_list_copies(plan, number, layout, uploads))]
        for number, layout in enumerate(layouts)
    ]


def _list_copies(
    plan: Plan | ShardPlan, number: int, layout: Layout, uploads: Uploads
) -> Iterator[_Copy]:
    if layout.between is not None:  # a checksum needs the bytes
        return
    names = _list_unchanged(plan, number)
    for info, offset in zip(layout.tensors, layout.offsets, strict=True):
        name = names.get(info.name)
        source = None if name is None else plan.source.file_range(name)
        if source is not None and source.nbytes and uploads.can_copy(source.file.path):
            yield _Copy(offset, source)


def _list_unchanged(plan: Plan | ShardPlan, number: int) -> dict[str, str]:
    """Return the tensors of a file that are stored as in the source, with their names there."""
    if isinstance(plan, Plan):
        return {item.info.name: item.source.name for item in plan.items if item.is_copy}
    return {
        shard.info.name: shard.pieces[0].source
        for shard in plan.ranks[number]
        if len(shard.pieces) == 1 and not shard.pieces[0].part
    }


def _merge(copies: Iterator[_Copy]) -> Iterator[_Copy]:
    last: _Copy | None = None
    for each in copies:
        if (
            last is not None
            and each.start == last.stop
            and each.source.file is last.source.file
            and each.source.offset == last.source.offset + last.source.nbytes
        ):
            end = each.source.offset + each.source.nbytes
            last = _Copy(last.start, last.source.file.range(last.source.offset, end))
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


def cut_object(
    nbytes: int, copies: Sequence[tuple[int, FileRange]], *, size: int, least: int
) -> list[ObjectPart]:
    """Return the parts of an object of `nbytes`, in order.

    Parts that are sent have `size` bytes or fewer, and all but the last have `least` or more:
    ranges that are too short are sent, and a copy gives up its first bytes to a part before it.
    """
    parts: list[ObjectPart] = []
    position = 0
    largest = max(_LARGEST_COPY, -(-nbytes // _MOST_COPIES))
    for start, source in copies:
        stop = start + source.nbytes
        # What is sent before it must be long enough to be a part.
        begin = start if start == position else max(start, position + least)
        if stop - begin < least:
            continue
        parts += _cut_sent(position, begin, size, least)
        for at in range(begin, stop, largest):
            # The rest of a very long range may be too short for a part.
            end = min(at + largest, stop)
            if stop - end < least:
                end = stop
            parts.append(ObjectPart(at, end, source.part(at - start, end - start)))
            position = end
            if end == stop:
                break
    return [*parts, *_cut_sent(position, nbytes, size, least)]


def _cut_sent(start: int, stop: int, size: int, least: int) -> Iterator[ObjectPart]:
    """Yield the parts of bytes that are sent; the last one is long enough too."""
    while start < stop:
        end = min(start + size, stop)
        if 0 < stop - end < least:
            end = stop
        yield ObjectPart(start, end)
        start = end


def list_gaps(layout: Layout) -> list[tuple[int, int]]:
    """Return the ranges of a file that stay zero: what neither header nor tensors fill."""
    if layout.between is not None:
        return []
    gaps: list[tuple[int, int]] = []
    position = len(layout.header)
    for info, offset in zip(layout.tensors, layout.offsets, strict=True):
        if offset > position:
            gaps.append((position, offset))
        position = offset + info.nbytes
    if layout.nbytes > position:
        gaps.append((position, layout.nbytes))
    return gaps
