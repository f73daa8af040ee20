"""Pipes and devices that are written in order."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from weightctl.storage.base import cannot_write

if TYPE_CHECKING:
    from weightctl.storage.base import Bytes
    from weightctl.storage.byte_range import FileRange

__all__ = ["PipeWriter", "wait_for_room", "write_all"]

_COPY = 1 << 20
# What a pipe holds, instead of 64 KiB: its reader and its writer then wait less for each other.
# This is the most that a user may ask for by default.
_ROOM = 1 << 20


class PipeWriter:
    """A pipe or device that takes bytes in order; `nbytes` counts what was written so far."""

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self.path = path
        self.nbytes = 0
        with suppress(ImportError, AttributeError, OSError):  # another system, or another device
            import fcntl

            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _ROOM)

    def write(self, data: Bytes, /) -> None:
        """Append bytes; raises `OutputError`."""
        try:
            write_all(self.descriptor, data)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.nbytes += memoryview(data).nbytes

    def copy(self, source: FileRange, /) -> None:
        """Append a range of a file, inside the kernel where that works.

        Raises `OutputError`, and `FormatError` if the range cannot be read.
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
    """Append bytes to what a descriptor names; raises `OSError`."""
    view = memoryview(data).cast("B")
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            wait_for_room(descriptor)


def wait_for_room(descriptor: int) -> None:
    """Wait until a pipe that its other end has made non-blocking takes bytes, or has no reader."""
    import select  # hardly any output needs it

    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()
