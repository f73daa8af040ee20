"""Divides objects into parts for uploading: parts that are sent, and parts that the store copies.

If the same store already has bytes in another object, the store copies them. Only the bytes between
such ranges, and bytes that are needed to make a part long enough, are sent.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from weightctl.formats.sharded.records import SourceShard
from weightctl.plan.plan import Plan
from weightctl.split import part_shape
from weightctl.weights.byte_ranges import byte_part, byte_shape
from weightctl.weights.steps.sliced import runs, shortest_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.formats.base import Layout
    from weightctl.sharding.plan import ShardPlan
    from weightctl.storage.base import FileRange, Uploads

# The largest part that is copied. A store copies it within seconds; with a much larger part, the
# request would seem to be stalled.
_LARGEST_COPY = 64 << 20
# Shorter ranges are sent, since requests to copy them would take longer.
_SHORTEST_COPY = 1 << 20
# Shards whose contiguous ranges in the source are shorter than this are sent as a whole.
_LEAST_RUN = 1 << 16
# The largest number of copied parts of an object.
_MOST_COPIES = 4_000


class ObjectPart(NamedTuple):
    """A part of an object, from `start` to `stop`.

    `source` is the range of another object that the store copies; None if the part is sent.
    """

    start: int
    stop: int
    source: FileRange | None = None


class _Copy(NamedTuple):
    """Bytes of an object, at `start`, that are equal to a range of another object."""

    start: int
    source: FileRange

    @property
    def stop(self) -> int:
        return self.start + self.source.nbytes


def list_copies(
    plan: Plan | ShardPlan, layouts: Sequence[Layout], uploads: Uploads
) -> list[list[tuple[int, FileRange]]]:
    """Return, for each file, the offsets and source ranges of bytes that the store can copy.

    Ranges that are adjacent in the source and in the file are merged.
    """
    return [
        [(each.start, each.source) for each in _merge(_list_copies(plan, number, layout, uploads))]
        for number, layout in enumerate(layouts)
    ]


def _list_copies(
    plan: Plan | ShardPlan, number: int, layout: Layout, uploads: Uploads
) -> Iterator[_Copy]:
    if layout.between is not None:  # computing checksums needs the bytes
        return
    pieces = _list_pieces(plan, number)
    for made, offset in zip(layout.tensors, layout.offsets, strict=True):
        at = offset
        for name, part in pieces.get(made.name, ()):
            info, source = plan.source.header.tensors[name], plan.source.file_range(name)
            is_short = part and shortest_run(info, part) < _LEAST_RUN
            if source is None or is_short or not uploads.can_copy(source.file.path):
                at += prod(part_shape(byte_shape(info), byte_part(info, part)))
                continue
            for start, nbytes in runs(info, part):
                yield _Copy(at, source.part(start, start + nbytes))
                at += nbytes


def _list_pieces(plan: Plan | ShardPlan, number: int) -> dict[str, tuple[SourceShard, ...]]:
    """Return the shards of the source in each tensor of a file whose bytes are unchanged."""
    if isinstance(plan, Plan):
        return {
            item.info.name: (SourceShard(item.source.name, ()),)
            for item in plan.items
            if item.is_copy and item.info.nbytes
        }
    return {shard.info.name: shard.pieces for shard in plan.ranks[number] if shard.info.nbytes}


def _merge(copies: Iterator[_Copy]) -> Iterator[_Copy]:
    last: _Copy | None = None
    for each in copies:
        if last is not None and each.start == last.stop:
            joined = last.source.join(each.source)
            if joined is not None:
                last = _Copy(last.start, joined)
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

    Parts that are sent have about `size` bytes at most, and all parts except the last have at least
    `least` bytes. Therefore short ranges are sent, and a part before a copied range may take the
    range's first bytes.
    """
    shortest = max(least, min(_SHORTEST_COPY, size))
    parts: list[ObjectPart] = []
    position = 0
    largest = max(_LARGEST_COPY, -(-nbytes // _MOST_COPIES))
    for start, source in copies:
        stop = start + source.nbytes
        # The bytes before it must be enough for a part.
        begin = start if start == position else max(start, position + least)
        if stop - begin < shortest:
            continue
        parts += _cut_sent(position, begin, size, least)
        for at in range(begin, stop, largest):
            # The remaining bytes of a long range may be too few for a part.
            end = min(at + largest, stop)
            if stop - end < least:
                end = stop
            parts.append(ObjectPart(at, end, source.part(at - start, end - start)))
            position = end
            if end == stop:
                break
    return [*parts, *_cut_sent(position, nbytes, size, least)]


def _cut_sent(start: int, stop: int, size: int, least: int) -> Iterator[ObjectPart]:
    """Yield the parts of a range that is sent; a short rest is added to the last part."""
    while start < stop:
        end = min(start + size, stop)
        if 0 < stop - end < least:
            end = stop
        yield ObjectPart(start, end)
        start = end


def list_gaps(layout: Layout) -> list[tuple[int, int]]:
    """Return the ranges of a file that are zero, since neither header nor tensors fill them."""
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
