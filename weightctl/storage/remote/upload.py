"""Uploads objects in numbered parts while their bytes are written in any order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter
from queue import SimpleQueue
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import OutputError
from weightctl.storage.base import HeldRange, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from weightctl.storage.base import ByteRange, Bytes, FileRange, UploadedPart, Uploads

# The number of parts that are sent at a time, for all objects together.
_REQUESTS = 8


class _UploadTask(NamedTuple):
    """A part to send, and the function that sends it."""

    send: Callable[[int, bytearray], None]
    number: int
    data: bytearray


class PartLimit:
    """The memory of parts that are being filled or sent, and the threads that send them.

    A thread that begins a part waits while the limit is exceeded and parts are being sent, since
    these release memory. It does not wait for parts that are only being filled, which might never
    be completed.
    """

    def __init__(self, nbytes: int) -> None:
        self._most = nbytes
        self._used = 0
        self._sending = 0
        self._begun = 0
        self._changed = Condition()
        # This lock is held while a part is in memory that does not count for the limit.
        self.alone = Lock()
        self._queue: SimpleQueue[_UploadTask | None] = SimpleQueue()

    def take(self, nbytes: int) -> bytearray:
        """Return a zero-filled buffer for a part; wait for memory if necessary."""
        with self._changed:
            while self._used + nbytes > self._most and self._sending:
                self._changed.wait()
            self._used += nbytes
        return bytearray(nbytes)

    def give_back(self, nbytes: int) -> None:
        """Release the memory of a part that is not sent."""
        with self._changed:
            self._used -= nbytes
            self._changed.notify_all()

    def send(self, send: Callable[[int, bytearray], None], number: int, data: bytearray) -> None:
        """Send a part in another thread."""
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
        """End the threads when all parts are sent."""
        for _ in range(self._begun):
            self._queue.put(None)
        self._begun = 0


class Coverage:
    """The ranges that have been written, in order and without overlap."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def add(self, start: int, stop: int) -> None:
        """Add a range, and merge it with ranges that it overlaps or touches."""
        first = bisect_left(self.ranges, start, key=itemgetter(1))
        last = bisect_right(self.ranges, stop, key=itemgetter(0))
        if first < last:
            start = min(start, self.ranges[first][0])
            stop = max(stop, self.ranges[last - 1][1])
        self.ranges[first:last] = [(start, stop)]

    @property
    def nbytes(self) -> int:
        """The number of bytes in all ranges."""
        return sum(stop - start for start, stop in self.ranges)


class FilledPart:
    """A part in memory, and the ranges of it that have been written."""

    __slots__ = ("covered", "data", "is_sent")

    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.covered = Coverage()
        self.is_sent = False


PART = 8 << 20


def part_size(uploads: Uploads, nbytes: int) -> int:
    """Return the size of the parts of an object of `nbytes`."""
    return max(PART, uploads.least_part, -(-nbytes // uploads.most_parts))


class UploadWriter(Writer):
    """An object of `nbytes` that is written at offsets, and sent part by part.

    `parts` has the start and stop of each part, and the range of another object that the store
    copies as this part, or None. `gaps` are ranges of zeros, in order, which are not written: a
    part is complete when all other bytes of it are written. `kept` are parts that an earlier run
    has sent. Bytes that are written to copied or kept parts are ignored. If `upload` is empty, the
    object is held in memory and sent in one request by `publish`.

    If several writers fill an object, `take_rest` returns the bytes of incomplete parts, and `hold`
    adds bytes of other writers.
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
        self._filling: dict[int, FilledPart] = {}
        # Ranges of bytes that are read when their part is complete, by the number of the part.
        self._held: dict[int, list[tuple[int, ByteRange]]] = {}
        self._failure: OutputError | None = None
        self._changed = Condition()

    def begin_copies(self) -> None:
        """Make the store copy the parts that come from other objects."""
        for number, (_, _, source) in enumerate(self._parts, 1):
            if source is not None and self.upload and number not in self.sent:
                self._send_later(number)

    def _send_later(self, number: int) -> None:
        """Send a part, in another thread, whose bytes are not in memory yet."""
        with self._changed:
            self._filling[number] = FilledPart(bytearray())
        self._limit.send(self._send, number, bytearray())

    def hold(self, ranges: Iterable[tuple[int, ByteRange]]) -> None:
        """Add ranges of bytes with their offsets; they are read when their part is complete.

        Each range must be inside one part.
        """
        for offset, held in ranges:
            number = bisect_right(self._starts, offset)
            if not len(held) or number in self.sent or self._parts[number - 1][2] is not None:
                continue
            with self._changed:
                self._held.setdefault(number, []).append((offset, held))
                part = self._filling.get(number)
            if part is not None:
                self._load(number, part, [(offset, held)])
                self._send_if_full(number, part)
            elif self.upload and self._is_full(number, self._cover_held(number)):
                self._send_later(number)

    def hold_bytes(self, offset: int, data: Bytes) -> None:
        """Add bytes at an offset, without allocating the memory of their part."""
        view = memoryview(data).cast("B")
        self.hold(
            (offset + start, HeldRange(view[start:stop]))
            for _, start, stop in self._list_sent(offset, len(view))
        )

    def _cover_held(self, number: int) -> Coverage:
        """Return the ranges of a part whose bytes were added by `hold`."""
        covered, first = Coverage(), self._starts[number - 1]
        for offset, held in self._held.get(number, ()):
            covered.add(offset - first, offset - first + len(held))
        return covered

    def _load(self, number: int, part: FilledPart, ranges: Iterable[tuple[int, ByteRange]]) -> None:
        """Read ranges that were added by `hold` into a part."""
        for offset, held in ranges:
            start = offset - self._starts[number - 1]
            part.data[start : start + len(held)] = held.read(0, len(held))
            part.covered.add(start, start + len(held))

    def _is_full(self, number: int, covered: Coverage) -> bool:
        return covered.nbytes + self._count_gaps(number) == self._count_bytes(number)

    def _list_sent(self, offset: int, nbytes: int) -> Iterator[tuple[int, int, int]]:
        """Yield the pieces of a range that are sent: the number of the part, start and stop.

        Start and stop are relative to the start of the range.
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
        """Write bytes at an offset; each byte must be written once."""
        self._refuse_failure()
        view = memoryview(data).cast("B")
        for number, start, stop in self._list_sent(offset, len(view)):
            self._fill(number, offset + start - self._starts[number - 1], view[start:stop])

    def copy(self, offset: int, source: FileRange, /) -> None:
        """Write a range of another file at an offset; only bytes that are sent are read."""
        for _, first, last in self._list_sent(offset, source.nbytes):
            for start, chunk in source.part(first, last).read_chunks():
                self.write(offset + first + start, chunk)

    def list_reads(self, offset: int, source: FileRange, /) -> list[FileRange]:
        found = self._list_sent(offset, source.nbytes)
        return [source.part(start, stop) for _, start, stop in found]

    def _fill(self, number: int, start: int, data: memoryview) -> None:
        with self._changed:
            part = self._filling.get(number)
        if part is None:
            nbytes = self._count_bytes(number)
            fresh = FilledPart(self._limit.take(nbytes))
            with self._changed:
                part = self._filling.setdefault(number, fresh)
                held = list(self._held.get(number, ()))
            if part is not fresh:
                self._limit.give_back(nbytes)
            elif held:
                self._load(number, part, held)
        part.data[start : start + len(data)] = data
        with self._changed:
            part.covered.add(start, start + len(data))
        self._send_if_full(number, part)

    def _send_if_full(self, number: int, part: FilledPart) -> None:
        with self._changed:
            is_sent = part.is_sent
            part.is_sent = part.is_sent or self._is_full(number, part.covered)
            is_full = part.is_sent and not is_sent
        if is_full and self.upload:
            self._limit.send(self._send, number, part.data)

    def _count_bytes(self, number: int) -> int:
        start, stop, _ = self._parts[number - 1]
        return stop - start

    def _count_gaps(self, number: int) -> int:
        """Return the number of bytes of a part that are in gaps."""
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
            self._held.pop(number, None)

    def _send_part(self, number: int, data: bytearray) -> UploadedPart:
        source = self._parts[number - 1][2]
        if source is None and not data:
            data = self._read_held(number)
        if source is not None:
            found = self._uploads.copy_part(self.path, self.upload, number, source)
            if found is not None:
                return found
            with self._limit.alone:  # a copied part is large, so only one is in memory at a time
                data = bytearray(source.nbytes)
                source.file.read_into(source.offset, memoryview(data))
                return self._uploads.put_part(self.path, self.upload, number, data)
        return self._uploads.put_part(self.path, self.upload, number, data)

    def _read_held(self, number: int) -> bytearray:
        """Return the bytes of a part that were all added by `hold`."""
        part = FilledPart(bytearray(self._count_bytes(number)))
        self._load(number, part, self._held.get(number, ()))
        return part.data

    def take_sent(self) -> dict[int, UploadedPart]:
        """Wait until all complete parts are sent; remove and return them."""
        self._limit.wait()
        self._refuse_failure()
        sent, self.sent = self.sent, {}
        return sent

    def take_rest(self) -> list[tuple[int, memoryview]]:
        """Remove and return the bytes of incomplete parts, with their offsets."""
        with self._changed:
            filling, self._filling = self._filling, {}
        for part in filling.values():
            self._limit.give_back(len(part.data))
        return [
            (self._starts[number - 1] + start, memoryview(filling[number].data)[start:stop])
            for number in sorted(filling)
            for start, stop in filling[number].covered.ranges
        ]

    def add_sent(self, parts: Mapping[int, UploadedPart]) -> None:
        with self._changed:
            self.sent.update(parts)

    def mark(self) -> frozenset[int]:
        """Return the numbers of the parts that are not sent yet."""
        with self._changed:
            return frozenset(self._filling)

    def is_durable(self, mark: frozenset[int], /) -> bool:
        with self._changed:
            return mark.issubset(self.sent.keys())

    def _refuse_failure(self) -> None:
        """Raise the error if a part could not be sent."""
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        """Send the remaining parts, which only have zeros, and wait until all parts are sent.

        Raises `OutputError` if a part is incomplete or cannot be sent.
        """
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
            self._filling[number] = FilledPart(self._limit.take(nbytes))
            self._send(number, self._filling[number].data)
            self._limit.give_back(nbytes)
            self._refuse_failure()

    def publish(self, *, force: bool) -> None:
        """Make the object visible; raises `OutputError` if that fails."""
        if self.upload:
            self._uploads.complete(self.path, self.upload, self.sent, force=force)
            return
        part = self._filling.get(1)
        data = self._read_held(1) if part is None else part.data
        self._uploads.put(self.path, data, force=force)
