"""Local files, which are read by ranges and written at offsets; pipes, which are written in order.

Commands read files into memory, and do not map them. Another program may make a file shorter at any
time: a read then raises an error, but an access to a mapping would end the process (SIGBUS).
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from threading import Lock
from typing import TYPE_CHECKING

from weightctl.errors import FormatError, MissingFileError
from weightctl.storage.base import FileRange, Reader, Writer, cannot_write
from weightctl.storage.location import hint_for_missing
from weightctl.system.files import (
    NO_FOLLOW,
    NO_WAIT,
    copy_range_at,
    enlarge_pipe,
    explain_open_file,
    map_private,
    open_file,
    read_ahead,
    read_at,
    read_into_at,
    reserve,
    send_range,
    start_writing_back,
    sync,
    write_all,
    write_all_at,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.storage.base import Bytes


_HINTS = {
    errno.EACCES: "check the permissions of the file",
    errno.ENOMEM: "this process cannot map more memory; `ulimit -v` shows and sets the limit",
    errno.EMFILE: "this process cannot open more files; raise the limit with `ulimit -n`",
}
_AGAIN = "try again when no program writes to it"


_CLOSED = "read the data inside `with open_weights(path) as weights:`"


class FileReader(Reader):
    """A file that is open for reading.

    `size` is the number of its bytes, and `written` the time of the last write in nanoseconds, both
    at the time of opening. Only `private` maps the file, for arrays of library users. Raises
    `FormatError` if the path cannot be opened or is not a regular file.
    """

    tag = ""
    # The class has the attribute too, since an interrupt may leave an object half initialized.
    _descriptor = -1

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._descriptor = open_file(path, os.O_RDONLY | NO_WAIT)
            status = os.fstat(self._descriptor)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            hint = _HINTS.get(getattr(error, "errno", None) or 0, hint_for_missing(path))
            if isinstance(error, OSError):
                hint = explain_open_file(error) or hint
            kind = MissingFileError if isinstance(error, FileNotFoundError) else FormatError
            raise kind(path, None, reason, hint=hint) from error
        if not stat.S_ISREG(status.st_mode):
            is_directory = stat.S_ISDIR(status.st_mode)
            what = "a directory" if is_directory else "a pipe, a socket or a device"
            raise FormatError(
                path,
                None,
                f"it is not a regular file (it is {what})",
                hint="use the path of a regular file",
            )
        self.size = status.st_size
        self.written = status.st_mtime_ns

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # When the interpreter ends, `os` may be gone.
        if self._descriptor >= 0:
            close(self._descriptor)
            self._descriptor = -1

    def close(self) -> None:
        """Close the file; reading it afterwards raises an error. Mappings stay valid."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return (FileReader, (self.path,))

    def fileno(self) -> int:
        return self._descriptor

    def read(self, offset: int, nbytes: int) -> bytes:
        wanted = min(nbytes, self.size - offset)
        if wanted <= 0:
            return b""
        try:
            found = read_at(self._descriptor, wanted, offset)
        except OSError as error:
            raise self._unread(offset, error) from error
        if len(found) < wanted:
            raise self._became_shorter(offset + len(found))
        return found

    def private(self, offset: int, nbytes: int) -> memoryview:
        """Return a writable view of a range; changes in it are not written to the file.

        Each call maps only the range, so that ranges of a file larger than memory can be used. If
        the file becomes shorter later, access to the view ends the process, so commands use `read`
        and `read_into`. Raises `FormatError` if the file is already too short.
        """
        if nbytes == 0:
            return memoryview(bytearray())
        if self._descriptor < 0:
            # A mapping without a file would be memory with zeros.
            raise FormatError(self.path, offset, "the file is closed", hint=_CLOSED)
        before = offset % mmap.ALLOCATIONGRANULARITY
        try:
            mapped = map_private(self._descriptor, before + nbytes, offset - before)
        except (OSError, ValueError) as error:
            raise self._cannot_map(offset, nbytes, error) from error
        return memoryview(mapped)[before:]

    def _cannot_map(self, offset: int, nbytes: int, error: OSError | ValueError) -> FormatError:
        hint = _HINTS.get(
            getattr(error, "errno", None) or 0, "check whether another program changed the file"
        )
        text = f"{nbytes} bytes cannot be mapped: {error}"
        return FormatError(self.path, offset, text, hint=hint)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            try:
                count = read_into_at(self._descriptor, buffer[done:], offset + done)
            except OSError as error:
                raise self._unread(offset + done, error) from error
            if count == 0:
                raise self._became_shorter(offset + done)
            done += count

    def _became_shorter(self, offset: int) -> FormatError:
        text = "the file ends here: it became shorter while it was read"
        return FormatError(self.path, offset, text, hint=_AGAIN)

    def _unread(self, offset: int, error: OSError) -> FormatError:
        if self._descriptor < 0:
            return FormatError(self.path, offset, "the file is closed", hint=_CLOSED)
        return FormatError(self.path, offset, f"cannot be read: {error.strerror}")

    def copy_into(self, offset: int, nbytes: int, descriptor: int, at: int | None = None) -> int:
        """Make the kernel copy bytes to offset `at` of another file, or append them to a pipe.

        Return the number of bytes that were copied. It may be 0, and is 0 if the file has become
        shorter.
        """
        if at is None:
            return send_range(self._descriptor, descriptor, offset, nbytes)
        return copy_range_at(self._descriptor, descriptor, offset, at, nbytes)

    def refuse_change(self) -> None:
        status = os.fstat(self._descriptor)
        if (status.st_size, status.st_mtime_ns) != (self.size, self.written):
            raise FormatError(self.path, None, "the file changed while it was read", hint=_AGAIN)

    def expect(self, offset: int, nbytes: int) -> bool:
        """Request that the system reads a range ahead, up to the end of the file."""
        nbytes = min(nbytes, self.size - offset)
        if nbytes > 0:
            read_ahead(self._descriptor, offset, nbytes)
        return True


# After this number of written bytes, the system starts to write them to the disk, so that `sync`
# does not have to wait long.
_BATCH = 8 << 20


class FileWriter(Writer):
    """A local file of `nbytes` that is written at offsets.

    Disk space is reserved, and bytes are zero until they are written. If the file exists, its
    content is kept, up to `nbytes`. If `create` is false, another process must have created the
    file. Raises `OutputError` if the file cannot be opened or the space cannot be reserved.
    """

    def __init__(self, path: str, nbytes: int, *, create: bool = True) -> None:
        self.path = path
        self._not_begun = 0
        # The kernel copies into a file for one thread at a time, while other threads busy-wait.
        self._copying = Lock()
        try:
            self.descriptor = open_file(path, os.O_RDWR | os.O_CREAT * create | NO_FOLLOW)
        except OSError as error:
            raise cannot_write(path, error) from error
        try:
            if create:
                reserve(self.descriptor, nbytes)
                os.ftruncate(self.descriptor, nbytes)
        except OSError as error:
            self.close()
            raise cannot_write(path, error) from error

    def write(self, offset: int, data: Bytes, /) -> None:
        view = memoryview(data).cast("B")
        count = len(view)
        try:
            write_all_at(self.descriptor, view, offset)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._start_writing_back(count)

    def copy(self, offset: int, source: FileRange, /) -> None:
        """Write a range of another file; the kernel copies it if it can."""
        start, end = source.offset, source.offset + source.nbytes
        while start < end:
            with self._copying:
                count = source.file.copy_into(start, end - start, self.descriptor, offset)
            if not count:
                break
            start, offset = start + count, offset + count
            self._start_writing_back(count)
        # If the kernel has failed to copy, reading or writing raises the error.
        for at, chunk in source.part(start - source.offset, source.nbytes).read_chunks():
            self.write(offset + at, chunk)

    def _start_writing_back(self, count: int) -> None:
        # If two threads add at the same time, a count may be lost; writing to the disk then starts
        # a little later.
        self._not_begun += count
        if self._not_begun >= _BATCH:
            self._not_begun = 0
            start_writing_back(self.descriptor, 0, 0)

    def sync(self) -> None:
        """Wait until all written bytes are on the disk."""
        try:
            sync(self.descriptor)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        os.close(self.descriptor)


class PipeWriter:
    """A pipe or device that is written in order; `nbytes` is the number of bytes written so far."""

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self.path = path
        self.nbytes = 0
        enlarge_pipe(descriptor)

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
        for _, chunk in source.part(start - source.offset, source.nbytes).read_chunks():
            self.write(chunk)
