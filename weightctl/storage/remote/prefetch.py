"""Reads ahead: fetches the ranges that will be read next, with several requests at a time."""

from __future__ import annotations

from bisect import bisect_right
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weightctl.storage.base import Bytes

# The largest number of bytes of one request.
CHUNK = 8 << 20
# The largest number of concurrent requests, for all files together.
_REQUESTS = 16
_DEFAULT_LIMIT = 64 << 20


class _Limit:
    """The limit of bytes that are fetched ahead, for all files together."""

    def __init__(self) -> None:
        self.most = _DEFAULT_LIMIT
        self._used = 0
        self._lock = Lock()

    def take(self, nbytes: int, *, is_needed: bool) -> bool:
        """Reserve bytes; return False if they exceed the limit and are not needed immediately."""
        with self._lock:
            if self._used + nbytes > self.most and not is_needed:
                return False
            self._used += nbytes
            return True

    def give_back(self, nbytes: int) -> None:
        with self._lock:
            self._used -= nbytes


_LIMIT = _Limit()


def set_read_ahead(nbytes: int) -> None:
    """Set the limit of bytes that are fetched ahead, for all files together."""
    _LIMIT.most = nbytes


class _Workers:
    """Daemon threads that carry out requests."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[_AheadChunk] = SimpleQueue()
        self._begun = 0
        self._lock = Lock()

    def put(self, piece: _AheadChunk) -> None:
        """Add a chunk to the queue of chunks to fetch."""
        with self._lock:
            if self._begun < _REQUESTS:
                Thread(target=self._run, name="weightctl-fetch", daemon=True).start()
                self._begun += 1
        self._queue.put(piece)

    def _run(self) -> None:
        while True:
            self._queue.get().fetch()


_WORKERS = _Workers()


class _AheadChunk:
    """A range that is fetched or will be; `left` is the number of bytes that were not read yet."""

    def __init__(self, start: int, stop: int, request: Callable[[int, int], list[Bytes]]) -> None:
        self.start = start
        self.stop = stop
        self.left = stop - start
        self.is_dropped = False
        self._request = request
        self._done = Event()
        self._data: list[Bytes] = []
        self._error: Exception | None = None

    def fetch(self) -> None:
        """Request the bytes; `read` raises the error if the request fails."""
        try:
            if not self.is_dropped:
                self._data = self._request(self.start, self.stop)
        except Exception as error:  # noqa: BLE001
            self._error = error
        self._done.set()

    def read(self, start: int, stop: int) -> Iterator[tuple[int, memoryview]]:
        """Wait for the bytes; yield those from `start` to `stop` in pieces, with their offsets."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        at = self.start
        for data in self._data:
            first, last = max(start - at, 0), min(stop - at, len(data))
            if first < last:
                yield at + first, memoryview(data)[first:last]
            at += len(data)


class ReadAhead:
    """The chunks of one file that are fetched before they are read.

    A chunk is dropped when all of it was read, so that memory is only used for bytes that are
    expected and not yet read.
    """

    def __init__(self, request: Callable[[int, int], list[Bytes]], size: int) -> None:
        self._request = request
        self._size = size
        self._pieces: list[_AheadChunk] = []  # in order, without overlap
        self._lock = Lock()

    def expect(self, offset: int, nbytes: int, *, is_needed: bool = False) -> bool:
        """Begin to fetch the missing chunks of a range; return False at the limit of memory.

        If `is_needed` is set, they are fetched even if they exceed the limit.
        """
        stop = min(offset + nbytes, self._size)
        with self._lock:
            for start, end in self._list_gaps(offset, stop):
                for begin in range(start, end, CHUNK):
                    piece = _AheadChunk(begin, min(begin + CHUNK, end), self._request)
                    if not _LIMIT.take(piece.left, is_needed=is_needed):
                        return False
                    place = bisect_right(self._pieces, begin, key=lambda each: each.start)
                    self._pieces.insert(place, piece)
                    _WORKERS.put(piece)
        return True

    def _list_gaps(self, start: int, stop: int) -> list[tuple[int, int]]:
        gaps: list[tuple[int, int]] = []
        for piece in self._pieces:
            if piece.stop <= start:
                continue
            if piece.start >= stop:
                break
            if piece.start > start:
                gaps.append((start, piece.start))
            start = piece.stop
        if start < stop:
            gaps.append((start, stop))
        return gaps

    def take(self, start: int, stop: int, use: Callable[[int, memoryview], object]) -> bool:
        """Call `use` with the offsets and bytes of a range, piece by piece, and drop them.

        Return False, without calling `use`, if a part of the range was not requested by `expect`.
        Raises the error of a failed request, and those of `use`.
        """
        with self._lock:
            if self._list_gaps(start, stop):
                return False
            pieces = [each for each in self._pieces if each.start < stop and each.stop > start]
        for piece in pieces:
            begin, end = max(start, piece.start), min(stop, piece.stop)
            try:
                for at, data in piece.read(begin, end):
                    use(at, data)
            except Exception:
                self._drop(piece)
                raise
            with self._lock:
                piece.left -= end - begin
            if piece.left <= 0:
                self._drop(piece)
        return True

    def _drop(self, piece: _AheadChunk) -> None:
        with self._lock:
            if piece.is_dropped:
                return
            piece.is_dropped = True
            self._pieces.remove(piece)
        _LIMIT.give_back(piece.stop - piece.start)

    def close(self) -> None:
        for piece in list(self._pieces):
            self._drop(piece)
