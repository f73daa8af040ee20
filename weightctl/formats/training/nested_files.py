"""Files that are stored within another file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.storage.base import FileRange

if TYPE_CHECKING:
    from weightctl.storage.base import Reader


class FileSlice:
    """The bytes from `start` on of a file, `size` of them, as a file of its own.

    Reading it reads the other file, and raises the errors of that file.
    """

    def __init__(self, file: Reader, start: int, size: int) -> None:
        self._file, self._start = file, start
        self.path = file.path
        self.size = size
        self.written = file.written
        self.tag = file.tag

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return `nbytes` at `offset`, or fewer if the slice ends earlier."""
        return self._file.read(self._start + offset, max(min(nbytes, self.size - offset), 0))

    def read_end(self, nbytes: int) -> bytes:
        """Return the last `nbytes` of the slice, or all of a smaller slice."""
        return self.read(max(self.size - nbytes, 0), nbytes)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes at `offset`."""
        self._file.read_into(self._start + offset, buffer)

    def range(self, start: int = 0, stop: int | None = None) -> FileRange:
        """Return a range of the bytes, as a range of the other file."""
        whole = FileRange(self._file, self._start, self.size)
        return whole.part(start, self.size if stop is None else stop)

    def private(self, offset: int, nbytes: int) -> memoryview:
        """Return a writable view of a range; changes in it are not written to the file."""
        return self._file.private(self._start + offset, nbytes)

    def copy_into(self, offset: int, nbytes: int, descriptor: int, at: int | None = None) -> int:
        """Copy bytes to a file descriptor without reading them; return how many were copied."""
        return self._file.copy_into(self._start + offset, nbytes, descriptor, at)

    def expect(self, offset: int, nbytes: int) -> bool:
        """Prepare for a later read of a range; return False if not all of it could be prepared."""
        return self._file.expect(self._start + offset, nbytes)

    def refuse_change(self) -> None:
        """Raise `FormatError` if the other file has changed since it was opened."""
        self._file.refuse_change()

    def close(self) -> None:
        """Do nothing: the other file stays open."""
