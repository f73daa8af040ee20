"""Ranges of bytes, in a file or in memory, that are read on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from weightctl.storage.base import Reader

__all__ = ["ByteRange", "FileRange", "HeldRange"]


class ByteRange(Protocol):
    """Bytes that follow one another; offsets count from the first of them."""

    def __len__(self) -> int: ...

    def read(self, start: int, nbytes: int) -> bytes:
        """Return the bytes at `start`: `nbytes`, or fewer where the range ends before.

        Raises `FormatError` if a file cannot be read or has become shorter.
        """
        ...

    def part(self, start: int, stop: int) -> ByteRange:
        """Return the range from `start` to `stop`, or to the end where that comes before."""
        ...


class FileRange:
    """`nbytes` of a file from `offset` on; nothing is read before it is asked for."""

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
        """Read bytes of the file."""
        return self.file.read(self.offset + start, min(nbytes, self.nbytes - start))

    def part(self, start: int, stop: int) -> FileRange:
        """Return a part of the range; nothing is read."""
        start, stop = _clip_range(start, stop, self.nbytes)
        return FileRange(self.file, self.offset + start, stop - start)

    def expect(self, start: int = 0, stop: int | None = None) -> bool:
        """Have what is from `start` to `stop` read ahead; return False if there is no room yet."""
        stop = self.nbytes if stop is None else stop
        return self.file.expect(self.offset + start, stop - start)


class HeldRange:
    """Bytes in memory."""

    __slots__ = ("_memory",)

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def __len__(self) -> int:
        return len(self._memory)

    def read(self, start: int, nbytes: int) -> bytes:
        """Copy bytes."""
        return bytes(self._memory[start : start + max(nbytes, 0)])

    def part(self, start: int, stop: int) -> HeldRange:
        """Return a part of the memory; nothing is copied."""
        start, stop = _clip_range(start, stop, len(self._memory))
        return HeldRange(self._memory[start:stop])


def _clip_range(start: int, stop: int, size: int) -> tuple[int, int]:
    start = min(start, size)
    return start, max(start, min(stop, size))
