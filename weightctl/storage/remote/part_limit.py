"""Limits the memory of objects' parts that wait to be sent, and sends them in threads."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter
from queue import SimpleQueue
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

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
