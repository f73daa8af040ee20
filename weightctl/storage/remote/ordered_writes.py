"""Writes files whose bytes are written in any order and sent in order."""

from __future__ import annotations

from threading import Condition
from typing import TYPE_CHECKING

from weightctl.errors import OutputError
from weightctl.storage.base import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.storage.base import Bytes, FileRange

_COPY = 1 << 20
_ZEROS = bytes(1 << 20)


class HeldMemory:
    """The limit of memory for bytes that wait for earlier bytes, for all files together.

    A thread whose bytes would exceed `nbytes` waits until earlier bytes are sent. There is no
    deadlock if tasks begin in the order of their bytes, and if each task writes its bytes in order:
    the first incomplete task then writes the bytes that are sent next, which do not need memory.
    """

    def __init__(self, nbytes: int) -> None:
        self.most = nbytes
        self.used = 0
        self.is_stopped = False
        self.changed = Condition()


class OrderedWriter(Writer):
    """A file of `nbytes` that is written at offsets, and whose bytes are sent in order.

    `send` is called with bytes, and `end` after the last of them. `gaps` are ranges of zeros, in
    order, which are not written. The thread that writes the next bytes sends them, together with
    waiting bytes that follow them. If the run stops, sent bytes are lost, so none are durable.
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
        """Write bytes at an offset; each byte must be written once.

        Raises `OutputError` if bytes cannot be sent, or if the run has ended.
        """
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
        """Send bytes, and the waiting bytes that follow them."""
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
        """Return the next bytes to send; None if they are not written yet."""
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
        for start in range(0, source.nbytes, _COPY):
            self.write(offset + start, source.read(start, _COPY))

    def is_durable(self, mark: frozenset[int], /) -> bool:
        del mark
        return False

    def stop(self) -> None:
        with self._held.changed:
            self._held.is_stopped = True
            self._held.changed.notify_all()

    def finish(self) -> None:
        """Raise `OutputError` if not all bytes were sent."""
        self._refuse_failure()
        if self._position != self.nbytes:
            raise OutputError(
                f"{self.path}: {self._position} of {self.nbytes} bytes are complete",
                hint="this is an error in weightctl; please report it",
            )
