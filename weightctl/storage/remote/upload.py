"""Objects that are uploaded in numbered parts while their bytes come in any order."""

from __future__ import annotations

from bisect import bisect_right
from queue import SimpleQueue
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from weightctl.storage.base import Bytes, UploadedPart, Uploads
    from weightctl.storage.byte_range import FileRange

__all__ = ["PartLimit", "UploadWriter", "part_size"]

PART = 8 << 20
_COPY = 1 << 20
# How many parts are sent at a time, for all objects together.
_REQUESTS = 8


def part_size(uploads: Uploads, nbytes: int) -> int:
    """Return the bytes of each part of an object of `nbytes`."""
    return max(PART, uploads.least_part, -(-nbytes // uploads.most_parts))


class _UploadTask(NamedTuple):
    """A part that is to be sent, and what sends it."""

    send: Callable[[int, bytearray], None]
    number: int
    data: bytearray


class PartLimit:
    """The memory of parts that are filled or sent, and the threads that send them.

    A thread that begins a part waits while the limit is reached and parts are being sent, since
    each of them makes room. Parts that are only filled make none, so that nothing waits for them.
    """

    def __init__(self, nbytes: int) -> None:
        self._most = nbytes
        self._used = 0
        self._sending = 0
        self._begun = 0
        self._changed = Condition()
        # Held while a part is in memory that the limit does not know.
        self.alone = Lock()
        self._queue: SimpleQueue[_UploadTask | None] = SimpleQueue()

    def take(self, nbytes: int) -> bytearray:
        """Return zeros for a part, when there is room."""
        with self._changed:
            while self._used + nbytes > self._most and self._sending:
                self._changed.wait()
            self._used += nbytes
        return bytearray(nbytes)

    def give_back(self, nbytes: int) -> None:
        """Return the room of a part that is not sent."""
        with self._changed:
            self._used -= nbytes
            self._changed.notify_all()

    def send(self, send: Callable[[int, bytearray], None], number: int, data: bytearray) -> None:
        """Have a part sent by another thread."""
        with self._changed:
            self._sending += 1
            if self._begun < _REQUESTS:
                self._begun += 1
                Thread(target=self._run, name="weightctl-send", daemon=True).start()
        self._queue.put(_UploadTask(send, number, data))

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            task.send(task.number, task.data)
            with self._changed:
                self._sending -= 1
                self._used -= len(task.data)
                self._changed.notify_all()

    def wait(self) -> None:
        """Wait until no part is being sent."""
        with self._changed:
            while self._sending:
                self._changed.wait()

    def close(self) -> None:
        """End the threads."""
        for _ in range(self._begun):
            self._queue.put(None)
        self._begun = 0


class UploadWriter:
    """An object of `nbytes` that is written at offsets, and sent part by part.

    `parts` are where each part starts and stops, and the range of another object that the store
    copies for it, if there is one: what is written to such a part is left out. `gaps` are ranges
    that stay zero, in order: a part is complete when all else of it is written. `kept` are parts
    that an earlier run has sent; what is written to them is left out. An object without an upload
    is held until it is published.
    """

    def __init__(
        self,
        path: str,
        nbytes: int,
        *,
        uploads: Uploads,
        limit: PartLimit,
        upload: str,
        parts: Sequence[tuple[int, int, FileRange | None]],
        gaps: Sequence[tuple[int, int]] = (),
        kept: Mapping[int, UploadedPart] | None = None,
    ) -> None:
        self.path = path
        self.nbytes = nbytes
        self.upload = upload
        self.sent: dict[int, UploadedPart] = dict(kept or {})
        # Whether an earlier run has made the object visible.
        self.is_published = False
        self._uploads = uploads
        self._limit = limit
        self._parts = parts
        self._starts = [start for start, *_ in parts]
        self._gaps = gaps
        self._filling: dict[int, _FilledPart] = {}
        self._failure: OutputError | None = None
        self._changed = Condition()

    def begin_copies(self) -> None:
        """Have the store copy the parts that it has the bytes of."""
        for number, (_, _, source) in enumerate(self._parts, 1):
            if source is not None and self.upload and number not in self.sent:
                with self._changed:
                    self._filling[number] = _FilledPart(bytearray(), 0)
                self._limit.send(self._send, number, bytearray())

    def _list_sent(self, offset: int, nbytes: int) -> Iterator[tuple[int, int, int]]:
        """Yield the pieces of a range whose bytes are needed: number of the part, start and stop.

        They count from the start of the range.
        """
        position, end = offset, offset + nbytes
        while position < end:
            number = bisect_right(self._starts, position)
            _, stop, source = self._parts[number - 1]
            stop = min(stop, end)
            if source is None and number not in self.sent:
                yield number, position - offset, stop - offset
            position = stop

    def write(self, offset: int, data: Bytes, /) -> None:
        """Write bytes at an offset; each byte is written once."""
        self._refuse_failure()
        view = memoryview(data).cast("B")
        for number, start, stop in self._list_sent(offset, len(view)):
            self._fill(number, offset + start - self._starts[number - 1], view[start:stop])

    def copy(self, offset: int, source: FileRange, /) -> None:
        """Write a range of another file at an offset; only what is sent is read."""
        buffer = memoryview(bytearray(min(source.nbytes, _COPY)))
        for _, first, last in self._list_sent(offset, source.nbytes):
            for start in range(first, last, _COPY):
                chunk = buffer[: last - start]
                source.file.read_into(source.offset + start, chunk)
                self.write(offset + start, chunk)

    def list_reads(self, offset: int, source: FileRange, /) -> list[FileRange]:
        """Return the ranges that `copy` reads."""
        found = self._list_sent(offset, source.nbytes)
        return [source.part(start, stop) for _, start, stop in found]

    def _fill(self, number: int, start: int, data: memoryview) -> None:
        with self._changed:
            part = self._filling.get(number)
        if part is None:
            nbytes = self._count_bytes(number)
            memory = self._limit.take(nbytes)
            fresh = _FilledPart(memory, nbytes - self._count_gaps(number))
            with self._changed:
                part = self._filling.setdefault(number, fresh)
            if part is not fresh:
                self._limit.give_back(nbytes)
        part.data[start : start + len(data)] = data
        with self._changed:
            part.left -= len(data)
            is_full = part.left == 0
        if is_full and self.upload:
            self._limit.send(self._send, number, part.data)

    def _count_bytes(self, number: int) -> int:
        start, stop, _ = self._parts[number - 1]
        return stop - start

    def _count_gaps(self, number: int) -> int:
        """Return how many bytes of a part stay zero."""
        first, last, _ = self._parts[number - 1]
        place = max(bisect_right(self._gaps, (first, first)) - 1, 0)
        found = 0
        for start, stop in self._gaps[place:]:
            if start >= last:
                break
            found += max(min(stop, last) - max(start, first), 0)
        return found

    def _send(self, number: int, data: bytearray) -> None:
        try:
            if self._failure is None:
                self.sent[number] = self._send_part(number, data)
        except OutputError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001
            self._failure = OutputError(f"{self.path} cannot be written: {error}")
        with self._changed:
            del self._filling[number]

    def _send_part(self, number: int, data: bytearray) -> UploadedPart:
        source = self._parts[number - 1][2]
        if source is not None:
            found = self._uploads.copy_part(self.path, self.upload, number, source)
            if found is not None:
                return found
            with self._limit.alone:  # such parts are large
                data = bytearray(source.nbytes)
                source.file.read_into(source.offset, memoryview(data))
                return self._uploads.put_part(self.path, self.upload, number, data)
        return self._uploads.put_part(self.path, self.upload, number, data)

    def mark(self) -> frozenset[int]:
        """Return the parts that are not sent yet."""
        with self._changed:
            return frozenset(self._filling)

    def is_durable(self, mark: frozenset[int], /) -> bool:
        """Whether the parts of a mark have been sent."""
        with self._changed:
            return mark.issubset(self.sent.keys())

    def sync(self) -> None:
        """Do nothing: parts are sent when they are complete, and `is_durable` says which were."""

    def stop(self) -> None:
        """Do nothing: threads wait only for parts that are being sent."""

    def _refuse_failure(self) -> None:
        """Raise the error of a part that could not be sent."""
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        """Send what is left, parts that are only zeros among it, and wait; raises `OutputError`."""
        self._limit.wait()
        self._refuse_failure()
        if not self.upload:
            return
        for number in range(1, len(self._parts) + 1):
            if number in self.sent:
                continue
            nbytes = self._count_bytes(number)
            if number in self._filling or self._count_gaps(number) < nbytes:
                raise OutputError(
                    f"{self.path}: part {number} is not complete",
                    hint="this is an error in weightctl; please report it",
                )
            self._filling[number] = _FilledPart(self._limit.take(nbytes), 0)
            self._send(number, self._filling[number].data)
            self._limit.give_back(nbytes)
            self._refuse_failure()

    def publish(self, *, force: bool) -> None:
        """Make the object visible; raises `OutputError`."""
        if self.upload:
            self._uploads.complete(self.path, self.upload, self.sent, force=force)
            return
        held = self._filling.get(1)
        data = held.data if held is not None else bytearray(self.nbytes)
        self._uploads.put(self.path, data, force=force)

    def close(self) -> None:
        """Do nothing: an upload is ended by whoever began it."""


class _FilledPart:
    """A part in memory, and how many of its bytes are not written yet."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytearray, left: int) -> None:
        self.data = data
        self.left = left
