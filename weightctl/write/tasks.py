"""Divides a conversion into tasks: ranges of output files, and the data that fills them."""

from __future__ import annotations

from collections import deque
from math import lcm, prod
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from weightctl.errors import ConversionError
from weightctl.storage.location import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from weightctl.codecs.base import F32
    from weightctl.formats.base import Layout
    from weightctl.plan.plan import Item, Plan
    from weightctl.storage.base import FileRange, Writer
    from weightctl.write.journal import Record
    from weightctl.write.outcome import Outcome

# The working memory in bytes per element that a codec may need (tests check this limit).
_WORKING = 64
# The largest chunk, so large that the interpreter's overhead of 0.1 ms per chunk is small.
_MAX_ELEMENTS = 1 << 20
MAX_COPY = 1 << 20
# The smallest chunk, even if it exceeds the memory limit.
_MIN_ELEMENTS = 1 << 12
_MIN_COPY = 1 << 16
# A task is recorded when all of it is on the disk. Tasks are small enough that a crash loses little
# work and that all threads are busy, and large enough that records are few and that the
# interpreter's overhead of 0.4 ms per task is small.
_LEAST_TASK, _USUAL_TASK, _LARGEST_TASK = 1 << 20, 4 << 20, 64 << 20
_FEWEST_TASKS, _TASKS = 256, 1024
# The nanoseconds of error feedback for a value, for each column of its matrix.
_FEEDBACK_NS = 0.13
# The bytes that a worker is assumed to read and write per second, if no rate is given.
BANDWIDTH = 1e9


class Portion(NamedTuple):
    """A range of an output tensor: `start` and `stop` are bytes of a copy, or else elements.

    `offset` is the offset of the whole tensor in its file.
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
    """A task, represented by a key from which each worker finds it.

    The task reads `read` bytes and writes `made` bytes. `place` is the number of a file and an
    offset that it writes to; tasks of a batch should have places near each other. `computing` is
    the time in seconds that one core takes to encode or hash, in addition to reading and writing.
    """

    key: Any
    read: int
    made: int
    place: tuple[int, int]
    computing: float = 0.0

    @property
    def cost(self) -> int:
        """The bytes that are read or written, whichever is more."""
        return max(self.read, self.made)

    def estimate_seconds(self, bandwidth: float = BANDWIDTH) -> float:
        """Return the expected time in seconds on one core, with `bandwidth` bytes per second."""
        return (self.read + self.made) / bandwidth + self.computing


class NumberedWriters(Protocol):
    """The writers of the output files, by number."""

    def __getitem__(self, number: int, /) -> Writer: ...


class Work(Protocol):
    """Fills the files of an outcome with tasks, which threads carry out."""

    def select(self, records: Iterable[Record], /) -> Mapping[tuple[int, str], Record]:
        """Return the records of an earlier run that are valid, by file and key."""
        ...

    def count_bytes(self, records: Collection[tuple[int, str]], /) -> int:
        """Return the number of output bytes of the recorded tasks."""
        ...

    def list_tasks(self, records: Collection[tuple[int, str]], /) -> Sequence[Any]:
        """Return the tasks that are not recorded."""
        ...

    def measure(self, task: Any, /) -> KeyedTask:
        """Return the key by which workers find a task, its bytes, and its expected time."""
        ...

    def assign(self, keys: Sequence[Any], /) -> Sequence[Any]:
        """Return the tasks with these keys, which will be done next."""
        ...

    def do(
        self, task: Any, files: NumberedWriters, report: Callable[[int], object], /
    ) -> list[Record]:
        """Carry out a task, and return its records; the bytes may not be on the disk yet."""
        ...

    def list_documents(
        self, outcome: Outcome, records: Mapping[tuple[int, str], Record] | None, /
    ) -> Mapping[str, bytes]:
        """Return documents that describe the output.

        This is called before the first task, without records, and after the last task.
        """
        ...


class Chunk(NamedTuple):
    """Whole blocks of a tensor that are processed in memory.

    `start` and `stop` are bytes of the source, in rows of `row` bytes. The result has `made` bytes,
    and is written at `offset` in the output file. `importance` is one weight per column, or None.
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

    They only depend on the plan, and not on threads or memory, unless `nbytes` gives their size. If
    a layout needs the CRC-32 of each tensor, each tensor is a task of its own. Raises
    `ConversionError` if the size of a tensor differs from that in its layout.
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
    """Return the number of bytes that are read for a portion of an item of `stored` bytes."""
    return stored * (portion.stop - portion.start) // _count_units(portion.item)


def estimate_encoding(portion: Portion) -> float:
    """Return the expected seconds in which one core encodes a portion; 0 for copies."""
    item = portion.item
    if item.is_copy:
        return 0.0
    nanoseconds = item.info.encoding.encode_ns[item.importance is not None]
    if item.hessian is not None:
        nanoseconds += _FEEDBACK_NS * item.info.row
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
    # Changing the byte order needs whole blocks; the blocks of unknown encodings are unknown.
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
    """Cut a portion into chunks of whole blocks of both encodings, each of at most `room` bytes.

    Chunks have a minimum size, even if it exceeds `room`, to keep the interpreter's overhead small.
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
    """Yield ranges of elements, [start, stop), with the importance of their columns."""
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


# The largest size of a requested range.
_LARGEST = 8 << 20


class RemoteReads:
    """The ranges of remote files that tasks will read; ranges of local files are left out.

    `advance` is called repeatedly while tasks run.
    """

    def __init__(self, ranges: Iterable[FileRange]) -> None:
        self._ranges = deque(_merge(each for each in ranges if is_remote(each.file.path)))
        self._lock = Lock()

    def advance(self) -> None:
        """Request the next ranges, up to the limit of memory."""
        with self._lock:
            while self._ranges and self._ranges[0].expect():
                self._ranges.popleft()


def _merge(ranges: Iterable[FileRange]) -> Iterable[FileRange]:
    """Split ranges into ranges of at most `_LARGEST` bytes, and join adjacent ones of a file."""
    last: FileRange | None = None
    steps = (
        whole.part(start, start + _LARGEST)
        for whole in ranges
        for start in range(0, whole.nbytes, _LARGEST)
    )
    for each in steps:
        joined = None if last is None else last.join(each)
        if joined is not None and joined.nbytes <= _LARGEST:
            last = joined
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last
