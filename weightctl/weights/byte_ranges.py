"""Byte ranges of a tensor and of its shards: where the bytes of one are in the other.

A tensor is cut into boxes, which are contiguous ranges of its bytes. The intersection of a box and
a part is contiguous in the part, and consists of columns in the box.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from weightctl.split import Cut, part_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from weightctl.split import Part, Range
    from weightctl.weights.info import TensorInfo

# The most bytes that are read at a time into a buffer of their own.
_MOST_BESIDE = 1 << 20


class Box(NamedTuple):
    """The bytes from `start` to `stop` of an axis, at one index (`place`) of the axes before it."""

    place: tuple[int, ...]
    start: int
    stop: int


class Overlap(NamedTuple):
    """The intersection of a part and a box: `nbytes` at `offset` of the part, an array of `shape`.

    If `is_contiguous`, the bytes are also contiguous in the box, and begin at its byte `start`.
    `places` has a pair of indices for each piece: in the array of the box, and in the array of the
    intersection.
    """

    offset: int
    nbytes: int
    start: int
    is_contiguous: bool
    shape: tuple[int, ...]
    places: tuple[tuple[tuple[slice, ...], tuple[slice, ...]], ...]


def byte_shape(info: TensorInfo) -> tuple[int, ...]:
    """Return the shape of a tensor as an array of bytes: the last dimension is the bytes of a row.

    If rows are not whole blocks, all bytes are one row; such a tensor is never split.
    """
    encoding = info.encoding
    if not info.shape or info.shape[-1] % encoding.block:
        return (info.nbytes,)
    return (*info.shape[:-1], info.shape[-1] // encoding.block * encoding.size)


def byte_part(info: TensorInfo, part: Part) -> Part:
    """Return a part of a tensor, which has whole blocks, as a part of its array of bytes."""
    last, encoding = len(info.shape) - 1, info.encoding

    def scale_cut(cut: Cut) -> Cut:
        ranges = (tuple(each // encoding.block * encoding.size for each in range_)
                  for range_ in cut.ranges)  # fmt: skip
        return Cut(cut.axis, tuple((start, stop) for start, stop in ranges))

    return tuple(scale_cut(cut) if cut.axis == last else cut for cut in part)


def boxes(shape: Sequence[int], limit: int) -> Iterator[Box]:
    """Cut an array of bytes into boxes of up to `limit` bytes, in the order of the bytes.

    A box exceeds the limit only if it is a single entry of its axis.
    """
    if not prod(shape):
        return
    axis = next(axis for axis in range(len(shape)) if prod(shape[axis + 1 :]) <= limit)
    step = max(limit // prod(shape[axis + 1 :]), 1)
    for place in product(*map(range, shape[:axis])):
        for start in range(0, shape[axis], step):
            yield Box(place, start, min(start + step, shape[axis]))


def boxes_of_run(shape: Sequence[int], start: int, stop: int, limit: int) -> Iterator[Box]:
    """Cut the bytes from `start` to `stop` of an array into boxes of up to `limit` bytes."""
    if start < stop:
        yield from _of_run(shape, (), start, stop, limit)


def _of_run(
    shape: Sequence[int], place: tuple[int, ...], start: int, stop: int, limit: int
) -> Iterator[Box]:
    """Yield the boxes of a byte range that is within one index (`place`) of the first axes."""
    inner = prod(shape[len(place) + 1 :])
    (first, before), (last, behind) = divmod(start, inner), divmod(stop, inner)
    if first == last:
        yield from _of_run(shape, (*place, first), before, behind, limit)
        return
    if before:
        yield from _of_run(shape, (*place, first), before, inner, limit)
        first += 1
    if inner <= limit:
        step = limit // inner
        yield from (Box(place, at, min(at + step, last)) for at in range(first, last, step))
    else:
        for at in range(first, last):
            yield from _of_run(shape, (*place, at), 0, inner, limit)
    if behind:
        yield from _of_run(shape, (*place, last), 0, behind, limit)


def find_overlaps(shape: Sequence[int], part: Part, box: Box) -> Iterator[Overlap]:
    """Yield the intersections of a part and a box, in the order of the part's bytes."""
    own = part_shape(shape, part)
    ranges: list[tuple[Range, ...]] = [((0, size),) for size in shape]
    for cut in part:
        ranges[cut.axis] = cut.ranges
    axis = len(box.place)
    index = 0
    for at, among, size in zip(box.place, ranges, own, strict=False):
        found = _index(at, among)
        if found is None:
            return
        index = index * size + found
    inner, whole_inner, passed = prod(own[axis + 1 :]), prod(shape[axis + 1 :]), 0
    columns = list(product(*map(_slices, ranges[axis + 1 :])))
    for start, stop in ranges[axis]:
        first, last = max(start, box.start), min(stop, box.stop)
        if first < last:
            offset = (index * own[axis] + passed + first - start) * inner
            rows = slice(first - box.start, last - box.start), slice(0, last - first)
            yield Overlap(
                offset,
                (last - first) * inner,
                rows[0].start * whole_inner,
                inner == whole_inner,
                (last - first, *own[axis + 1 :]),
                tuple(
                    (
                        (rows[0], *(there for there, _ in each)),
                        (rows[1], *(here for _, here in each)),
                    )
                    for each in columns
                ),
            )
        passed += stop - start


def scatter(
    shape: Sequence[int], box: Box, held: memoryview, overlap: Overlap, out: memoryview
) -> None:
    """Fill `out` with the part's bytes of a box, whose bytes are `held`.

    `shape` is the shape of the whole tensor in bytes.
    """
    import numpy as np  # not loaded by `ls`

    whole = np.frombuffer(held, np.uint8).reshape(_box_shape(shape, box))
    target = np.frombuffer(out, np.uint8).reshape(overlap.shape)
    for there, own in overlap.places:
        target[own] = whole[there]


def collect(
    shape: Sequence[int], box: Box, held: memoryview, overlap: Overlap, own: memoryview
) -> None:
    """Copy the part's bytes, `own`, to their places in a box, whose bytes are `held`.

    `shape` is the shape of the whole tensor in bytes.
    """
    import numpy as np

    whole = np.frombuffer(held, np.uint8).reshape(_box_shape(shape, box))
    source = np.frombuffer(own, np.uint8).reshape(overlap.shape)
    for there, here in overlap.places:
        whole[there] = source[here]


def assemble(
    shape: Sequence[int],
    parts: Sequence[tuple[Part, Callable[[int, memoryview], object]]],
    start: int,
    buffer: memoryview,
    unit: int = 1,
) -> None:
    """Fill `buffer` with the bytes from `start` on of a tensor that is stored in parts.

    `shape` is the shape of the tensor in bytes. Each part has a function that fills a buffer with
    the part's bytes from an offset on. Where parts overlap, the bytes of the last one are kept.
    Reads are of whole units of bytes.
    """
    limit = max(_MOST_BESIDE // unit, 1) * unit
    done = 0
    for box in boxes_of_run(shape, start, start + buffer.nbytes, limit):
        nbytes = (box.stop - box.start) * prod(shape[len(box.place) + 1 :])
        held = buffer[done : done + nbytes]
        done += nbytes
        for part, read in parts:
            for overlap in find_overlaps(shape, part, box):
                if overlap.is_contiguous:
                    read(overlap.offset, held[overlap.start : overlap.start + overlap.nbytes])
                else:
                    own = memoryview(bytearray(overlap.nbytes))
                    read(overlap.offset, own)
                    collect(shape, box, held, overlap, own)


def _box_shape(shape: Sequence[int], box: Box) -> tuple[int, ...]:
    return (box.stop - box.start, *shape[len(box.place) + 1 :])


def _index(at: int, ranges: Sequence[Range]) -> int | None:
    """Return the index of an entry among the entries of some ranges; None if it is in no range."""
    passed = 0
    for start, stop in ranges:
        if start <= at < stop:
            return passed + at - start
        passed += stop - start
    return None


def _slices(ranges: Sequence[Range]) -> list[tuple[slice, slice]]:
    """Return for each range its slice in the whole axis, and in the part."""
    found: list[tuple[slice, slice]] = []
    passed = 0
    for start, stop in ranges:
        found.append((slice(start, stop), slice(passed, passed + stop - start)))
        passed += stop - start
    return found
