"""Files that are sent from front to back while their bytes come in any order."""

from __future__ import annotations

from threading import Condition
from typing import TYPE_CHECKING

from weightctl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.storage.base import Bytes
    from weightctl.storage.byte_range import FileRange

__all__ = ["HeldMemory", "OrderedWriter"]

_COPY = 1 << 20
_ZEROS = bytes(1 << 20)


class HeldMemory:
    """The memory for bytes that wait for those before them, for all files together.

    A thread whose bytes would exceed `nbytes` waits until those before them are sent. This ends if
    tasks begin in the order of the bytes, and if no task waits for its own later bytes: the first
    task that is not complete then writes what is sent next, which needs no memory here.
    """

    def __init__(self, nbytes: int) -> None:
        self.most = nbytes
        self.used = 0
        self.is_stopped = False
        self.changed = Condition()


class OrderedWriter:
    """A file of `nbytes` that is written at offsets, and whose bytes are sent in order by `send`.

    `end` is called after the last of them. `gaps` are ranges that stay zero, in order. A thread
    that writes what comes next sends it, and all that waits after it.
    """

    def __init__(
        self,
        path: str,
        nbytes: int,
        *,
        send: Callable[[bytes], object],
        end: Callable[[], object],
        held: HeldMemory,
        gaps: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.path = path
        self.nbytes = nbytes
        self._send = send
        self._end = end
        self._held = held
        self._gaps = dict(gaps)
        self._position = 0
        self._is_sending = False
        self._ahead: dict[int, bytes] = {}
        self._failure: OutputError | None = None

    def write(self, offset: int, data: Bytes, /) -> None:
        """Write bytes at an offset; each byte is written once. Raises `OutputError`."""
        view = memoryview(data).cast("B")
        if not view:
            return
        held = self._held
        with held.changed:
            while not self._is_next(offset) and held.used + len(view) > held.most:
                self._refuse_failure()
                if held.is_stopped:
                    raise OutputError(f"{self.path} cannot be written: the run has ended")
                held.changed.wait()
            self._refuse_failure()
            if not self._is_next(offset):
                self._ahead[offset] = bytes(view)
                held.used += len(view)
                return
            self._is_sending = True
        self._send_from(data if isinstance(data, bytes) else bytes(view))

    def _is_next(self, offset: int) -> bool:
        return offset == self._position and not self._is_sending

    def _refuse_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _send_from(self, data: bytes | None) -> None:
        """Send bytes, and those that wait after them."""
        try:
            while data is not None:
                self._send(data)
                if self._position + len(data) == self.nbytes:
                    self._end()
                with self._held.changed:
                    self._position += len(data)
                    data = self._take_next()
                    self._is_sending = data is not None
                    self._held.changed.notify_all()
        except BaseException as error:
            with self._held.changed:
                self._failure = (
                    error
                    if isinstance(error, OutputError)
                    else OutputError(f"{self.path} cannot be written: the upload has ended")
                )
                self._held.changed.notify_all()
            raise

    def _take_next(self) -> bytes | None:
        """Return the bytes that come next, None if they are not written yet."""
        stop = self._gaps.pop(self._position, None)
        if stop is not None:
            zeros = _ZEROS[: stop - self._position]
            if self._position + len(zeros) < stop:
                self._gaps[self._position + len(zeros)] = stop
            return zeros
        data = self._ahead.pop(self._position, None)
        if data is not None:
            self._held.used -= len(data)
        return data

    def copy(self, offset: int, source: FileRange, /) -> None:
        """Write a range of another file at an offset."""
        for start in range(0, source.nbytes, _COPY):
            self.write(offset + start, source.read(start, _COPY))

    def list_reads(self, offset: int, source: FileRange, /) -> list[FileRange]:
        """Return the ranges that `copy` reads: all of it."""
        del offset
        return [source]

    def mark(self) -> frozenset[int]:
        """Return a mark without content: nothing is durable before the end."""
        return frozenset()

    def is_durable(self, mark: frozenset[int], /) -> bool:
        """Return False: what was sent is not kept if the run stops."""
        del mark
        return False

    def sync(self) -> None:
        """Do nothing: bytes are sent when their turn comes."""

    def stop(self) -> None:
        """Have threads that wait for the bytes of others raise `OutputError`."""
        with self._held.changed:
            self._held.is_stopped = True
            self._held.changed.notify_all()

    def finish(self) -> None:
        """Check that everything was sent; raises `OutputError`."""
        self._refuse_failure()
        if self._position != self.nbytes:
            raise OutputError(
                f"{self.path}: {self._position} of {self.nbytes} bytes are complete",
                hint="this is an error in weightctl; please report it",
            )

    def close(self) -> None:
        """Do nothing: the upload is ended by whoever began it."""
