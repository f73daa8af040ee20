"""Divides a conversion into tasks: ranges of output files, and the data that fills them."""

from __future__ import annotations

from math import lcm, prod
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.codecs.base import F32
    from weightctl.formats.base import Layout
    from weightctl.plan.plan import Item, Plan

__all__ = [
    "BANDWIDTH",
    "MAX_COPY",
    "Chunk",
    "KeyedTask",
    "Portion",
    "Task",
    "count_read",
    "cut_chunks",
    "cut_tasks",
    "estimate_encoding",
]

# Bytes of working memory per element that a codec may need (`tests/codecs` holds them to it).
_WORKING = 64
# Large enough that the interpreter's overhead, 0.1 ms for each chunk, is small.
_MAX_ELEMENTS = 1 << 20
MAX_COPY = 1 << 20
# The minimum, however small the memory limit is.
_MIN_ELEMENTS = 1 << 12
_MIN_COPY = 1 << 16
# A task is recorded when all of it is on the disk. It is small enough that a crash loses little
# work and that all threads are busy, and large enough that records are few and that the
# interpreter's overhead, 0.4 ms for each task, is small.
_LEAST_TASK, _USUAL_TASK, _LARGEST_TASK = 1 << 20, 4 << 20, 64 << 20
_FEWEST_TASKS, _TASKS = 256, 1024
# Bytes that a worker reads and writes in a second, if no measured rate is given.
BANDWIDTH = 1e9


class Portion(NamedTuple):
    """A part of an output tensor: bytes of a copy, or elements of a conversion.

    `offset` is where the tensor starts in its file.
    """

    item: Item
    start: int
    stop: int
    offset: int


class Task(NamedTuple):
    """Consecutive portions of an output file; `number` counts tasks from 0."""

    number: int
    file: int
    portions: tuple[Portion, ...]


class KeyedTask(NamedTuple):
    """A task, by a key that each worker knows it by.

    It reads `read` bytes and writes `made` bytes. `place` is a file and an offset that it writes
    to, which tasks of a batch should have in common. `computing` is the time in seconds that one
    core takes to encode or hash, in addition to reading and writing.
    """

    key: Any
    read: int
    made: int
    place: tuple[int, int]
    computing: float = 0.0

    @property
    def cost(self) -> int:
        """The bytes that it reads or writes, whichever is more."""
        return max(self.read, self.made)

    def estimate_seconds(self, bandwidth: float = BANDWIDTH) -> float:
        """Return the expected time on one core that reads and writes so many bytes a second."""
        return (self.read + self.made) / bandwidth + self.computing


class Chunk(NamedTuple):
    """Whole blocks of a tensor that are processed in memory.

    `start` and `stop` are bytes of the source. It is laid out as rows of `row` bytes, and becomes
    `made` bytes at `offset` of the output file. `importance` is one weight per column, or None.
    """

    item: Item
    start: int
    stop: int
    row: int
    offset: int
    made: int
    importance: F32 | None = None


def cut_tasks(
    plan: Plan, layouts: Sequence[Layout], *, nbytes: int | None = None
) -> Iterator[Task]:
    """Yield the tasks of a plan in the order of the output's bytes.

    They depend on the plan alone, not on threads or memory, unless `nbytes` gives their size. If a
    layout needs the CRC-32 of each tensor, each tensor is a task, and what stands after it is known
    when its task is done. Raises `ConversionError` if a tensor's length differs from the one in its
    layout.
    """
    by_name = {item.info.name: item for item in plan.items}
    if nbytes is None:
        total = sum(map(_count_work, plan.items))
        least = max(min(total // _FEWEST_TASKS, _USUAL_TASK), _LEAST_TASK)
        nbytes = min(max(total // _TASKS, least), _LARGEST_TASK)
    number = 0
    for file, layout in enumerate(layouts):
        portions: list[Portion] = []
        size = 0
        for info, offset in zip(layout.tensors, layout.offsets, strict=True):
            item = by_name[info.name]
            _refuse_other_size(item)
            whole = _count_units(item)
            if not whole:
                continue
            step = _step(item, nbytes) if layout.between is None else whole
            for start in range(0, whole, step):
                stop = min(start + step, whole)
                portions.append(Portion(item, start, stop, offset))
                size += _count_portion(portions[-1])
                if size >= nbytes or layout.between is not None:
                    yield Task(number, file, tuple(portions))
                    number, portions, size = number + 1, [], 0
        if portions:
            yield Task(number, file, tuple(portions))
            number += 1


def _count_work(item: Item) -> int:
    """Return the bytes read or written for a tensor, whichever is more."""
    return max(item.source.nbytes, item.info.nbytes)


def _count_portion(portion: Portion) -> int:
    """Return the bytes that are read or written for a portion, whichever is more."""
    return _count_work(portion.item) * (portion.stop - portion.start) // _count_units(portion.item)


def count_read(portion: Portion, stored: int) -> int:
    """Return the bytes that are read for a portion of an item with so many stored bytes."""
    return stored * (portion.stop - portion.start) // _count_units(portion.item)


def estimate_encoding(portion: Portion) -> float:
    """Return the seconds in which one core encodes a portion; copies take none."""
    item = portion.item
    if item.is_copy:
        return 0.0
    nanoseconds = item.info.encoding.encode_ns[item.importance is not None]
    return (portion.stop - portion.start) * nanoseconds * 1e-9


def _count_units(item: Item) -> int:
    return item.source.nbytes if item.is_copy else item.source.size


def _step(item: Item, nbytes: int) -> int:
    """Return the number of bytes or elements in one task: whole blocks, or whole rows."""
    if item.is_copy:
        unit = _copy_unit(item)
        return max(nbytes // unit, 1) * unit
    unit = _unit(item)
    each = max(_count_work(item) * unit // max(item.source.size, 1), 1)
    return max(nbytes // each, 1) * unit


def _copy_unit(item: Item) -> int:
    # A change of byte order needs whole blocks; unknown encodings have none.
    return item.source.encoding.size if item.source.encoding.is_known else 1


def _unit(item: Item) -> int:
    """Return the smallest number of elements that can be encoded independently.

    Importance applies to columns, so with it the unit is a row; otherwise it is a block.
    """
    source, target = item.source.encoding, item.info.encoding
    return lcm(source.block, target.block) if item.importance is None else item.info.row


def _refuse_other_size(item: Item) -> None:
    source, target = item.source, item.info
    made = source.nbytes if item.is_copy else source.size // target.encoding.block
    made = made if item.is_copy else made * target.encoding.size
    if made != target.nbytes:
        raise ConversionError(
            f"`{target.name}` has {made} bytes instead of {target.nbytes}",
            hint="this is an error in weightctl; please report it",
        )


def cut_chunks(portion: Portion, room: int) -> Iterator[Chunk]:
    """Cut a portion into chunks of whole blocks of both encodings, each within `room` bytes.

    A minimum size keeps the overhead of the interpreter small, even if it exceeds `room`.
    """
    item = portion.item
    if item.is_copy:
        unit = _copy_unit(item)
        step = max(max(min(MAX_COPY, room), _MIN_COPY) // unit, 1) * unit
        for start in range(portion.start, portion.stop, step):
            stop = min(start + step, portion.stop)
            nbytes = stop - start
            yield Chunk(item, start, stop, nbytes, portion.offset + start, nbytes)
        return
    source, target, unit = item.source.encoding, item.info.encoding, _unit(item)
    wanted = max(min(_MAX_ELEMENTS, room // _WORKING), _MIN_ELEMENTS)
    step = max(wanted // unit, 1) * unit
    for first, last, importance in _list_matrices(portion):
        for start in range(first, last, step):
            elements = min(step, last - start)
            row = elements if importance is None else item.info.row
            begin = start // source.block * source.size
            yield Chunk(
                item,
                begin,
                begin + elements // source.block * source.size,
                row // source.block * source.size,
                portion.offset + start // target.block * target.size,
                elements // target.block * target.size,
                importance,
            )


def _list_matrices(portion: Portion) -> Iterator[tuple[int, int, F32 | None]]:
    """Yield ranges [start, stop) of elements that share their importance, with it."""
    item, importance = portion.item, portion.item.importance
    if importance is None:
        yield portion.start, portion.stop, None
        return
    matrices = prod(item.info.shape[:-2])
    if importance.shape not in {(1, item.info.row), (matrices, item.info.row)}:
        raise ConversionError(
            f"`{item.info.name}` has importance of shape {importance.shape}, where "
            f"{(matrices, item.info.row)} belongs",
            hint="this is an error in weightctl; please report it",
        )
    size = item.source.size // importance.shape[0]
    for matrix in range(portion.start // size, -(-portion.stop // size)):
        first = max(matrix * size, portion.start)
        last = min((matrix + 1) * size, portion.stop)
        yield first, last, item.importance_of(matrix)
