"""Files that are read in place."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from typing import TYPE_CHECKING

from weightctl.disk import copy_range, read_ahead
from weightctl.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MappedFile"]


# Writable pages are promised memory unless told otherwise, and a tensor may be larger than that.
_PRIVATE = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
_WRITABLE = mmap.PROT_READ | mmap.PROT_WRITE


_HINTS = {
    errno.EACCES: "may you read it?",
    errno.ENOMEM: "no more memory may be mapped; `ulimit -v` tells and sets how much",
    errno.EMFILE: "this process may open no more files; raise the limit with `ulimit -n`",
}


class MappedFile:
    """A file opened for reading: mapped for views, or read into buffers that the caller owns.

    `size` is how many bytes it has, and `written` when that was written last, in nanoseconds, both
    as it was opened. Raises `FormatError` where the path cannot be opened or is no regular file.
    """

    # Of the class too, for an object that an interrupt leaves half made.
    _descriptor = -1

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(self._descriptor)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            hint = _HINTS.get(getattr(error, "errno", None) or 0, "check the path")
            raise FormatError(path, None, reason, hint=hint) from error
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(path, None, "not a regular file", hint="name a file or a directory")
        self.size = status.st_size
        self.written = status.st_mtime_ns
        self._whole: memoryview | None = None

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def __reduce__(self) -> tuple[Callable[[str], MappedFile], tuple[str]]:
        return (MappedFile, (self.path,))

    @property
    def whole(self) -> memoryview:
        """The whole file, read-only; pages are read when they are touched.

        Raises `FormatError` where it cannot be mapped.
        """
        if self._whole is None:
            try:
                self._whole = memoryview(
                    mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ) if self.size else b""
                )
            except (OSError, ValueError) as error:
                raise self._unmapped(0, self.size, error) from error
        return self._whole

    def private(self, offset: int, nbytes: int) -> memoryview:
        """A writable view of a range; what is written into it never reaches the file.

        Each call maps only the range, so that a file larger than memory can be used piecewise.
        Raises `FormatError` where the file has become shorter.
        """
        if nbytes == 0:
            return memoryview(bytearray())
        before = offset % mmap.ALLOCATIONGRANULARITY
        try:
            mapped = mmap.mmap(
                self._descriptor, before + nbytes, _PRIVATE, _WRITABLE, offset=offset - before
            )
        except (OSError, ValueError) as error:
            raise self._unmapped(offset, nbytes, error) from error
        return memoryview(mapped)[before:]

    def _unmapped(self, offset: int, nbytes: int, error: OSError | ValueError) -> FormatError:
        hint = _HINTS.get(getattr(error, "errno", None) or 0, "did the file change meanwhile?")
        text = f"{nbytes} bytes cannot be mapped: {error}"
        return FormatError(self.path, offset, text, hint=hint)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes at `offset`.

        Raises `FormatError` where the file cannot be read or has become shorter.
        """
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self._descriptor, [buffer[done:]], offset + done)
            except OSError as error:
                raise FormatError(
                    self.path, offset + done, f"cannot be read: {error.strerror}"
                ) from error
            if count == 0:
                raise FormatError(
                    self.path, offset + done, "the file ends here", hint="did it change meanwhile?"
                )
            done += count

    def copy_into(self, offset: int, nbytes: int, descriptor: int) -> int:
        """Let the kernel append bytes at `offset` to another file; return how many it did.

        It may do none, and does none where the file has become shorter.
        """
        return copy_range(self._descriptor, descriptor, offset, nbytes)

    def refuse_change(self) -> None:
        """Raise `FormatError` where the file has been written to since it was opened."""
        status = os.fstat(self._descriptor)
        if (status.st_size, status.st_mtime_ns) != (self.size, self.written):
            raise FormatError(
                self.path, None, "changed while it was read",
                hint="try again when nothing writes to it any more",
            )  # fmt: skip

    def expect(self, offset: int, nbytes: int) -> None:
        """Have the system read bytes ahead, as far as the file has them."""
        nbytes = min(nbytes, self.size - offset)
        if nbytes > 0:
            read_ahead(self._descriptor, offset, nbytes)
