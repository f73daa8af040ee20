"""A file or pipe being written, from front to back."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from weightctl.errors import OutputError
from weightctl.system.disk import reserve, start_writing_back
from weightctl.system.temporary import without_temporary

if TYPE_CHECKING:
    from weightctl.formats.base import Bytes
    from weightctl.weights.source import Span

__all__ = ["OutputFile", "cannot_write"]

# So much is written before the disk is told to begin with it.
_BATCH = 32 << 20
_COPY = 1 << 20


class OutputFile:
    """A file or pipe being written; `nbytes` counts what it has so far.

    `is_new` says that it is a file which holds nothing else.
    """

    def __init__(self, descriptor: int, path: str, *, is_new: bool = False) -> None:
        self.descriptor = descriptor
        self.path = path
        self.nbytes = 0
        self._is_new = is_new
        self._begun = 0

    def reserve(self, nbytes: int) -> None:
        """Set aside the room for all that will be written; `OutputError` where there is none."""
        if self._is_new:
            try:
                reserve(self.descriptor, nbytes)
            except OSError as error:
                raise cannot_write(self.path, error) from error

    def write(self, data: Bytes, /) -> None:
        """Append bytes; `OutputError` where the file system refuses them."""
        view = memoryview(data).cast("B")
        while view:
            try:
                count = os.write(self.descriptor, view)
            except BlockingIOError:
                _wait_for_room(self.descriptor)
                continue
            except OSError as error:
                raise cannot_write(self.path, error) from error
            view = view[count:]
            self._has(count)

    def copy(self, span: Span, /) -> None:
        """Append a range of another file, inside the kernel where that can be.

        Raises `OutputError` as `write` does, and `FormatError` where the range cannot be read.
        """
        file, offset, end = span.file, span.offset, span.offset + span.nbytes
        while offset < end:
            count = file.copy_into(offset, end - offset, self.descriptor)
            if not count:
                break
            offset += count
            self._has(count)
        # What is wrong, if anything is, reading and writing will say.
        buffer = memoryview(bytearray(min(end - offset, _COPY)))
        while offset < end:
            piece = buffer[: end - offset]
            file.read_into(offset, piece)
            self.write(piece)
            offset += len(piece)

    def _has(self, count: int) -> None:
        self.nbytes += count
        if self._is_new and self.nbytes - self._begun >= _BATCH:
            start_writing_back(self.descriptor, self._begun, self.nbytes - self._begun)
            self._begun = self.nbytes

    def sync(self) -> None:
        """Wait until the bytes are on the disk."""
        try:
            os.fsync(self.descriptor)
        except OSError as error:
            raise cannot_write(self.path, error) from error


def _wait_for_room(descriptor: int) -> None:
    """Wait until a pipe that its other end has made non-blocking takes bytes, or has no reader."""
    import select  # hardly any output needs it

    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()


def cannot_write(path: str, error: OSError) -> OutputError:
    """Return an error that says why the file system does not take an output.

    It names what is to be at `path`, which may be in a directory that is not whole either.
    """
    hints = {
        errno.ENOSPC: "free some space; the target is as it was",
        errno.EDQUOT: "your quota is used up; the target is as it was",
        errno.EFBIG: "the file system or a limit (ulimit -f) allows no larger file",
        errno.EMFILE: "this process may open no more files; raise the limit with `ulimit -n`",
        errno.EPIPE: "its reader has stopped before the end",
    }
    target = os.path.join(*map(without_temporary, os.path.split(path)))
    return OutputError(
        f"{target} cannot be written: {error.strerror}", hint=hints.get(error.errno or 0, "")
    )
