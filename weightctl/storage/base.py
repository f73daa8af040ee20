"""The interface of every storage: readers of ranges, and writers."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Protocol

from weightctl.errors import OutputError
from weightctl.system.temporary import without_temporary

if TYPE_CHECKING:
    from weightctl.storage.byte_range import FileRange

__all__ = ["Bytes", "Reader", "Writer", "cannot_write"]

Bytes = bytes | bytearray | memoryview


class Reader(Protocol):
    """A file, wherever it is, that is read by ranges.

    `path` is what messages call it, `size` the number of its bytes and `written` the time of the
    last write in nanoseconds, both when it was opened.
    """

    path: str
    size: int
    written: int

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return the bytes at `offset`: `nbytes`, or fewer where the file had fewer when opened.

        Raises `FormatError` if the file cannot be read or has become shorter.
        """
        ...

    def read_end(self, nbytes: int) -> bytes:
        """Return the last `nbytes` of the file, or all of a smaller one; errors as for `read`."""
        ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes at `offset`; errors as for `read`."""
        ...

    def range(self, start: int = 0, stop: int | None = None) -> FileRange:
        """Return a range of the file's bytes, which are read on demand."""
        ...

    def private(self, offset: int, nbytes: int) -> memoryview:
        """Return a writable view of a range; what is written into it never reaches the file.

        Raises `FormatError` if the file cannot be read or has become shorter.
        """
        ...

    def copy_into(self, offset: int, nbytes: int, descriptor: int, at: int | None = None) -> int:
        """Copy bytes to a descriptor without reading them here; return how many were copied.

        They go to offset `at` of a file, or are appended. 0 means that they have to be read.
        """
        ...

    def expect(self, offset: int, nbytes: int) -> None:
        """Prepare for a read that will follow, as far as the file has the bytes."""
        ...

    def refuse_change(self) -> None:
        """Raise `FormatError` if the file has changed since it was opened."""
        ...

    def close(self) -> None:
        """Close the file; reading it is an error from then on."""
        ...


class Writer(Protocol):
    """A destination of known length, whose ranges may be written in any order, by any thread."""

    path: str

    def write(self, offset: int, data: Bytes, /) -> None:
        """Write bytes at an offset; raises `OutputError`."""
        ...

    def copy(self, offset: int, source: FileRange, /) -> None:
        """Write a range of another file at an offset.

        Raises `OutputError`, and `FormatError` if the range cannot be read.
        """
        ...

    def sync(self) -> None:
        """Wait until what was written is durable; raises `OutputError`."""
        ...

    def close(self) -> None:
        """End writing."""
        ...


def cannot_write(path: str, error: OSError) -> OutputError:
    """Return an error that says why the file system does not take an output.

    It names what is to be at `path`, which may be in a temporary directory too.
    """
    hints = {
        errno.ENOSPC: "free some disk space; the target is unchanged",
        errno.EDQUOT: "your disk quota is used up; the target is unchanged",
        errno.EFBIG: (
            "the file system or a limit (`ulimit -f`) does not allow a file of this size"
        ),
        errno.EMFILE: "this process cannot open more files; raise the limit with `ulimit -n`",
        errno.EPIPE: "the reader closed the pipe before the end",
    }
    target = os.sep.join(map(without_temporary, path.split(os.sep)))
    return OutputError(
        f"{target} cannot be written: {error.strerror}", hint=hints.get(error.errno or 0, "")
    )
