"""Carries out the tasks of a conversion, which read and convert chunks of tensors."""

from __future__ import annotations

from math import isfinite
from re import escape
from shlex import quote
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from weightctl.errors import ConversionError, NonFiniteError
from weightctl.storage.base import FileRange
from weightctl.storage.location import is_remote
from weightctl.system.threads import Memory
from weightctl.text.sizes import format_size, parse_size
from weightctl.text.untyped import is_list, is_object
from weightctl.write.journal import Record
from weightctl.write.tasks import (
    MAX_COPY,
    KeyedTask,
    RemoteReads,
    count_read,
    cut_chunks,
    cut_tasks,
    estimate_encoding,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from weightctl.codecs.feedback import Curvature
    from weightctl.codecs.loss import Loss
    from weightctl.formats.base import Layout
    from weightctl.formats.imatrix.curvatures import Curvatures
    from weightctl.plan.plan import Item, Plan
    from weightctl.weights.info import TensorInfo
    from weightctl.write.tasks import Chunk, NumberedWriters, Portion, Task

DEFAULT_MEMORY = 256 << 20
# A thread needs at least this number of bytes: with smaller chunks, the interpreter would take most
# of the time.
_LEAST_ROOM = 1 << 20
# Larger ranges are copied in steps of this size, so that signals do not have to wait long.
_MAX_COPIED = 32 << 20
# The largest number of results of a thread that wait until they are written to a pipe.
_MOST_WAITING = 4
# The number of tasks that are read ahead for each thread.
_AHEAD = 4
_LOSS_FIELDS = (6, 7)


def memory_budget(memory: int | str | None, *, least: int = 1) -> int:
    """Return the memory limit in bytes, from a number of bytes or text such as "512MiB".

    None means `DEFAULT_MEMORY`. Raises `ConversionError` if the limit is less than `least` bytes.
    """
    if memory is None:
        return DEFAULT_MEMORY
    nbytes = parse_size(memory) if isinstance(memory, str) else memory
    if nbytes < least:
        raise ConversionError(
            f"{memory} of memory is too little",
            hint=f"use at least {format_size(least)}",
        )
    return nbytes


def count_threads(threads: int, memory: int) -> int:
    """Return the number of threads, limited by the number that `memory` bytes suffice for."""
    return min(threads, max(1, memory // 2 // _LEAST_ROOM))


class Filled(NamedTuple):
    """Bytes of an output tensor, at `offset` in its file.

    `data` are the bytes in memory, or a range of an input file to copy. `loss` is their rounding
    error.
    """

    info: TensorInfo
    offset: int
    data: memoryview | FileRange
    loss: Loss | None = None


class ConversionWork:
    """Fills the files of a plan, with at most `memory` bytes for all threads.

    The record of a task has the rounding error of each tensor, and its CRC-32 if the layout
    requires it.
    """

    def __init__(self, plan: Plan, layouts: Sequence[Layout], *, threads: int, memory: int) -> None:
        self._plan = plan
        self._layouts = layouts
        self._room = memory // 2 // threads
        # Allocating memory is slow, so each thread reuses its buffers.
        self._memory = Memory()
        self._ahead = threads * _AHEAD
        self._tasks: Sequence[Task] = ()
        self._all: Mapping[int, Task] = {}
        self._numbers: Mapping[int, int] = {}
        self._stored: dict[str, int] = {}
        self._remote: RemoteReads | None = None
        self._lock = Lock()
        self._curvatures: Curvatures | None = None
        self._is_remote = any(is_remote(file.path) for file in plan.source.files)
        if self._is_remote:
            from weightctl.storage.remote.prefetch import set_read_ahead

            # A quarter of the memory is for bytes that are fetched ahead.
            set_read_ahead(memory // 4)
            self._room = self._room * 3 // 4

    @property
    def results_in_order(self) -> int:
        """The number of results per thread that may wait for earlier results."""
        # Half of the memory is for the work, and the other half for results that wait.
        return max(1, min(_MOST_WAITING, self._room // MAX_COPY))

    def select(self, records: Iterable[Record]) -> dict[tuple[int, str], Record]:
        self._tasks = list(cut_tasks(self._plan, self._layouts))
        known = {(task.file, str(task.number)) for task in self._tasks}
        return {
            (record.file, record.key): record
            for record in records
            if (record.file, record.key) in known and _are_sound(record.facts)
        }

    def count_bytes(self, records: Collection[tuple[int, str]]) -> int:
        return sum(
            _count_made(portion)
            for task in self._tasks
            if (task.file, str(task.number)) in records
            for portion in task.portions
        )

    def list_tasks(self, records: Collection[tuple[int, str]]) -> list[Task]:
        tasks = self._tasks or list(cut_tasks(self._plan, self._layouts))
        self._tasks = [task for task in tasks if (task.file, str(task.number)) not in records]
        self._numbers = {task.number: place for place, task in enumerate(self._tasks)}
        self._remote = None
        return list(self._tasks)

    def measure(self, task: Task) -> KeyedTask:
        portions = task.portions
        return KeyedTask(
            task.number,
            sum(count_read(each, self._count_stored(each.item)) for each in portions),
            sum(map(_count_made, portions)),
            (task.file, task.number),
            sum(map(estimate_encoding, portions)),
        )

    def _count_stored(self, item: Item) -> int:
        """Return the bytes of the stored tensors (possibly hundreds) that an item comes from."""
        name = item.info.name
        if name not in self._stored:
            self._stored[name] = sum(info.nbytes for info in item.sources)
        return self._stored[name]

    def assign(self, keys: Sequence[int]) -> list[Task]:
        if not self._all:
            self._all = {task.number: task for task in cut_tasks(self._plan, self._layouts)}
        self._tasks = [self._all[key] for key in keys]
        self._numbers = {key: place for place, key in enumerate(keys)}
        self._remote = None
        return list(self._tasks)

    def expect(self, tasks: Iterable[Task]) -> None:
        """Fetch remote files ahead, in the order in which these tasks read them."""
        if self._is_remote:
            ranges = (self._find_range(portion) for task in tasks for portion in task.portions)
            self._remote = RemoteReads(filter(None, ranges))

    def do(
        self, task: Task, files: NumberedWriters, report: Callable[[int], object]
    ) -> list[Record]:
        """Write the range of a task, and return its record; the bytes may not be durable yet."""
        file, needs_crc = files[task.file], self._layouts[task.file].between is not None
        losses: dict[str, Loss] = {}
        crcs: dict[str, int] = {}
        self._prepare_reads(files)
        self._read_ahead(task)
        for info, offset, data, loss in self.fill(task, ranges=not needs_crc):
            if isinstance(data, FileRange):
                file.copy(offset, data)
            else:
                file.write(offset, data)
                if needs_crc:
                    crcs[info.name] = crc32(data, crcs.get(info.name, 0))
            add_loss(losses, info.name, loss)
            report(data.nbytes)
        facts: dict[str, Any] = {"crc32": crcs} if needs_crc else {}
        if losses:
            facts["losses"] = {name: _list_loss(loss) for name, loss in losses.items()}
        return [Record(task.file, str(task.number), facts)]

    def _prepare_reads(self, files: NumberedWriters) -> None:
        """Fetch remote files ahead, in the order of the tasks, except bytes that are not sent."""
        with self._lock:
            if self._is_remote and self._remote is None:
                self._remote = RemoteReads(self._list_reads(files))

    def _read_ahead(self, task: Task) -> None:
        """Make the system read the ranges of a later task ahead; for local files only."""
        if self._is_remote:
            return
        place = self._numbers[task.number] + self._ahead
        for following in self._tasks[place : place + 1]:
            for found in map(self._find_range, following.portions):
                if found is not None:
                    found.expect()

    def _list_reads(self, files: NumberedWriters) -> Iterator[FileRange]:
        """Yield the ranges that all tasks will read."""
        for task in self._tasks:
            for portion in task.portions:
                found = self._find_range(portion)
                if found is not None and portion.item.is_copy:
                    offset = portion.offset + portion.start
                    yield from files[task.file].list_reads(offset, found)
                elif found is not None:
                    yield found

    def _find_range(self, portion: Portion) -> FileRange | None:
        """Return the range of a file that a portion reads; None if it is not a single range."""
        item, start, stop, _ = portion
        source = self._plan.source.file_range(item.source.name)
        if source is None or item.is_copy:
            return source and source.part(start, stop)
        size, block = item.source.encoding.size, item.source.encoding.block
        return source.part(start // block * size, stop // block * size)

    def fill(self, task: Task, *, ranges: bool, results: int = 1) -> Iterator[Filled]:
        """Yield the bytes of a task in order.

        The last `results` results of a thread are valid; earlier buffers are reused. If `ranges` is
        set, unchanged bytes of a file are not read, and their range is yielded instead.
        """
        if self._remote is not None:
            self._remote.advance()
        for portion in task.portions:
            item = portion.item
            source = self._plan.source.file_range(item.source.name) if item.is_copy else None
            if ranges and source is not None:
                for start in range(portion.start, portion.stop, _MAX_COPIED):
                    stop = min(start + _MAX_COPIED, portion.stop)
                    yield Filled(item.info, portion.offset + start, source.part(start, stop))
                continue
            for chunk in cut_chunks(portion, self._room):
                made = self._memory.room_in_turn("made", chunk.made, results)
                if item.is_copy:
                    loss = self._plan.source.read_into(item.source.name, chunk.start, made)
                else:
                    loss = self._transcode(chunk, made)
                yield Filled(item.info, chunk.offset, made, loss)

    def _transcode(self, chunk: Chunk, made: memoryview) -> Loss | None:
        import numpy as np  # not needed for copies

        from weightctl.codecs import transcode

        item, raw = chunk.item, self._memory.room("read", chunk.stop - chunk.start)
        curvature = None if chunk.importance is None else self._find_curvature(item)
        self._plan.source.read_into(item.source.name, chunk.start, raw)
        rows = np.frombuffer(raw, np.uint8).reshape(-1, chunk.row)
        try:
            return transcode(
                rows, item.source.encoding, item.info.encoding, chunk.importance,
                curvature=curvature, measure=True, zero_nonfinite=self._plan.zero_nonfinite,
                out=np.frombuffer(made, np.uint8).reshape(len(rows), -1),
            ).loss  # fmt: skip
        except NonFiniteError as error:
            raise _refusal(chunk, error) from error

    def _find_curvature(self, item: Item) -> Curvature | None:
        if item.hessian is None:
            return None
        from weightctl.formats.imatrix.curvatures import Curvatures  # few conversions need it

        with self._lock:
            self._curvatures = self._curvatures or Curvatures()
        # None if the types of the plan were changed later.
        return self._curvatures.find_for(item.hessian, item.info.encoding)

    def list_documents(self, *_: object) -> dict[str, bytes]:
        """Return no documents, since the index is part of the outcome, and known before the run."""
        return {}

    def add_losses(self, records: Iterable[Record]) -> dict[str, Loss]:
        """Return the rounding error of each tensor, summed in the order of the tasks."""
        found: dict[str, Loss] = {}
        for record in sorted(records, key=lambda record: int(record.key)):
            for name, fields in record.facts.get("losses", {}).items():
                from weightctl.codecs.loss import Loss  # copies need no numpy

                add_loss(found, name, Loss(*fields))
        return found


def add_loss(losses: dict[str, Loss], name: str, loss: Loss | None) -> None:
    """Add the rounding error of a portion of a tensor to the losses by name."""
    if loss is not None:
        losses[name] = losses[name] + loss if name in losses else loss


def _count_made(portion: Portion) -> int:
    """Return the number of output bytes of a portion."""
    count, encoding = portion.stop - portion.start, portion.item.info.encoding
    return count if portion.item.is_copy else count // encoding.block * encoding.size


def _list_loss(loss: Loss) -> list[float]:
    fields = [loss.count, loss.overflows, loss.underflows,
              loss.squares, loss.squared_error, loss.nonfinite]  # fmt: skip
    return fields if loss.nearest_error is None else [*fields, loss.nearest_error]


def _are_sound(facts: Mapping[str, Any]) -> bool:
    losses, crcs = facts.get("losses", {}), facts.get("crc32", {})
    return (
        is_object(losses)
        and is_object(crcs)
        and all(type(crc) is int and 0 <= crc < 1 << 32 for crc in crcs.values())
        and all(
            is_list(fields)
            and len(fields) in _LOSS_FIELDS
            and all(type(field) in (int, float) for field in fields)
            for fields in losses.values()
        )
    )


def _refusal(chunk: Chunk, error: NonFiniteError) -> ConversionError:
    source, made = chunk.item.source, chunk.item.info
    index = chunk.start // source.encoding.size * source.encoding.block + error.index
    what = f"`{source.name}` has {error.value:g} at element {index}, which"
    # The hint must work together with --quant, and --tensor-type matches the output's names.
    kept = f"--tensor-type {quote(f'^{escape(made.name)}$=bf16')} (tensor_types in Python)"
    if not isfinite(error.value):
        return ConversionError(
            f"{what} {made.encoding} cannot hold",
            hint="the checkpoint is probably damaged; to store 0 instead, use --nonfinite zero "
            f"(nonfinite in Python); to keep the value, use {kept}",
        )
    if chunk.importance is None:
        return ConversionError(
            f"{what} {made.encoding} cannot hold", hint=f"to keep the value, use {kept}"
        )
    return ConversionError(
        f"{what} overflows the scale of its {made.encoding} block if the importance of the "
        "columns is used",
        hint="check the importance matrix; without --imatrix (imatrix in Python) the value may "
        f"fit; to keep it in any case, use {kept}",
    )
