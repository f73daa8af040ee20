"""Ranges of bytes, in a file or in memory, that are read on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from weightctl.storage.base import Reader


class ByteRange(Protocol):
    """A contiguous range of bytes; offsets are relative to its first byte."""

    def __len__(self) -> int: ...

    def read(self, start: int, nbytes: int) -> bytes:
        """Return `nbytes` at `start`, or fewer if the range ends earlier.

        Raises `FormatError` if a file cannot be read or has become shorter.
        """
        ...

    def part(self, start: int, stop: int) -> ByteRange:
        """Return the range from `start` to `stop`, or to the end if it comes earlier."""
        ...


class FileRange:
    """A range of `nbytes` in a file, at `offset`, which is read on demand."""

    __slots__ = ("file", "nbytes", "offset")

    def __init__(self, file: Reader, offset: int, nbytes: int) -> None:
        self.file = file
        self.offset = offset
        self.nbytes = nbytes

    def __len__(self) -> int:
        return self.nbytes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileRange):
            return NotImplemented
        return (self.file, self.offset, self.nbytes) == (other.file, other.offset, other.nbytes)

    def __hash__(self) -> int:
        return hash((self.file, self.offset, self.nbytes))

    def read(self, start: int, nbytes: int) -> bytes:
        """Read bytes of the range from the file."""
        return self.file.read(self.offset + start, min(nbytes, self.nbytes - start))

    def part(self, start: int, stop: int) -> FileRange:
        """Return a part of the range, without reading."""
        start, stop = _clip_range(start, stop, self.nbytes)
        return FileRange(self.file, self.offset + start, stop - start)

    def expect(self, start: int = 0, stop: int | None = None) -> bool:
        """Request that bytes from `start` to `stop` are read ahead.

        Return False if not all of them could be requested at this time.
        """
        stop = self.nbytes if stop is None else stop
        return self.file.expect(self.offset + start, stop - start)


class HeldRange:
    """A range of bytes in memory."""

    __slots__ = ("_memory",)

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def __len__(self) -> int:
        return len(self._memory)

    def read(self, start: int, nbytes: int) -> bytes:
        """Return a copy of bytes of the range."""
        return bytes(self._memory[start : start + max(nbytes, 0)])

    def part(self, start: int, stop: int) -> HeldRange:
        """Return a part of the memory, without copying."""
        start, stop = _clip_range(start, stop, len(self._memory))
        return HeldRange(self._memory[start:stop])


def _clip_range(start: int, stop: int, size: int) -> tuple[int, int]:
    start = min(start, size)
    return start, max(start, min(stop, size))
