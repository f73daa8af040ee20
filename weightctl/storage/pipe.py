"""Writes to pipes and devices, in order."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from weightctl.storage.base import cannot_write

if TYPE_CHECKING:
    from weightctl.storage.base import Bytes, FileRange

_COPY = 1 << 20
# The capacity that is requested for a pipe, instead of 64 KiB, so that its reader and its writer
# wait less for each other. It is the default limit for users on Linux.
_ROOM = 1 << 20


class PipeWriter:
    """A pipe or device that is written in order; `nbytes` is the number of bytes written so far."""

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self.path = path
        self.nbytes = 0
        with suppress(ImportError, AttributeError, OSError):  # another system, or another device
            import fcntl

            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _ROOM)

    def write(self, data: Bytes, /) -> None:
        """Append bytes; raises `OutputError` if that fails."""
        try:
            write_all(self.descriptor, data)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.nbytes += memoryview(data).nbytes

    def copy(self, source: FileRange, /) -> None:
        """Append a range of a file; the kernel copies it if it can.

        Raises `OutputError` if it cannot be written, and `FormatError` if it cannot be read.
        """
        start, end = source.offset, source.offset + source.nbytes
        while start < end:
            count = source.file.copy_into(start, end - start, self.descriptor)
            if not count:
                break
            start += count
            self.nbytes += count
        buffer = memoryview(bytearray(min(end - start, _COPY)))
        while start < end:
            chunk = buffer[: end - start]
            source.file.read_into(start, chunk)
            self.write(chunk)
            start += len(chunk)


def write_all(descriptor: int, data: Bytes) -> None:
    """Append bytes to a file descriptor, blocking or not; raises `OSError` if that fails."""
    view = memoryview(data).cast("B")
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            wait_for_room(descriptor)


def wait_for_room(descriptor: int) -> None:
    """Wait until a non-blocking pipe accepts bytes, or its reader has closed it."""
    import select  # rarely needed

    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()
