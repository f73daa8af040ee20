"""Bytes that a scan reads: a file, a part of other bytes, or what they unpack to."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from weightctl.formats.pickles.memory import LimitError
from weightctl.formats.pickles.scan import Reading
from weightctl.storage.local import FileReader

if TYPE_CHECKING:
    from weightctl.storage.base import Reader

__all__ = ["Budget", "EnclosedFile", "ScanPlace", "ScanSource", "Slice", "WholeFile", "as_stream"]

_UNPACKED = 1 << 30
# Tensors shrink little, and a member may be unpacked several times: a large file may take more.
_UNPACKED_PER_BYTE = 16
_MEMBERS = 1 << 20
_READ = 1 << 25
_LARGEST_HEADER = 1 << 25


class Budget:
    """What may still be done for one file, so that a small file does not keep a scan busy.

    `reading` counts the bytes of opcodes. Methods raise `LimitError` past a limit.
    """

    def __init__(self, nbytes: int) -> None:
        self._members = _MEMBERS
        self._most_unpacked = max(_UNPACKED, _UNPACKED_PER_BYTE * nbytes)
        self._unpacked = self._most_unpacked
        # Each byte of the file may be read in several ways.
        self.reading = Reading(4 * nbytes + _READ)

    def unpack(self, nbytes: int) -> None:
        """Count bytes that were unpacked."""
        self._unpacked -= nbytes
        if self._unpacked < 0:
            raise LimitError(f"its unpacked size is more than {self._most_unpacked >> 20} MiB")

    def enter(self, count: int = 1) -> None:
        """Count members of a container, or pickles that follow one another."""
        self._members -= count
        if self._members < 0:
            raise LimitError(f"it has more than {_MEMBERS} members or pickles")


class ScanSource(Protocol):
    """Bytes that are read on demand.

    `base` is what is added to offsets that are reported.
    """

    base: int

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return the bytes at `offset`: `nbytes`, or fewer where they end before."""
        ...

    def size(self) -> int:
        """Return how many bytes there are; what is compressed is unpacked for that."""
        ...


class WholeFile:
    """A file."""

    def __init__(self, file: Reader) -> None:
        self.base = 0
        self._file = file
        self.read = file.read

    def size(self) -> int:
        """Return the size of the file."""
        return self._file.size


class Slice:
    """A part of other bytes, as a member of an archive that is stored as it is."""

    def __init__(self, source: ScanSource, start: int, length: int) -> None:
        self.base = source.base + start
        self._source, self._start, self._length = source, start, length

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read bytes of the part."""
        nbytes = min(nbytes, self._length - offset)
        return self._source.read(self._start + offset, nbytes) if nbytes > 0 else b""

    def size(self) -> int:
        """Return the length of the part."""
        return self._length


class EnclosedFile(FileReader):
    """A file within a file, for what reads only files."""

    def __init__(self, path: str, source: ScanSource) -> None:
        self.path = path
        self.size = source.size()
        self.written = 0
        self._source = source

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return the bytes at `offset`: `nbytes`, or fewer where the file has fewer."""
        return self._source.read(offset, max(nbytes, 0))


class ScanPlace(NamedTuple):
    """Where a scan looks: bytes, the file that they are in, and the members that lead to them.

    `name` is what a program would call these bytes. `is_storage` says that they are elements of a
    tensor; `is_script` is that of `Scanned`.
    """

    source: ScanSource
    path: str
    member: str = ""
    name: str = ""
    depth: int = 0
    is_storage: bool = False
    is_script: bool = False

    def within(self, source: ScanSource, member: str, name: str | None = None) -> ScanPlace:
        """Return the place of a member."""
        label = f"{self.member} > {member}" if self.member else member
        name = member if name is None else name
        return ScanPlace(source, self.path, label, name, self.depth + 1)


class _Stream(io.RawIOBase):
    """Bytes as a file object of Python."""

    def __init__(self, source: ScanSource) -> None:
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence)
        self._at = (self._source.size() if start is None else start) + offset
        if self._at < 0:
            raise ValueError("a position is negative")
        return self._at

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        found = self._source.read(self._at, len(target))
        target[: len(found)] = found
        self._at += len(found)
        return len(found)


class _Limited(io.BufferedReader):
    """A file object of which not much is read at once, whatever an archive says of its headers."""

    def __init__(self, source: ScanSource) -> None:
        super().__init__(_Stream(source))
        self._source = source

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = max(self._source.size() - self.tell(), 0)
        if size > _LARGEST_HEADER:
            raise LimitError(f"it has a header of more than {_LARGEST_HEADER >> 20} MiB")
        return super().read(size)


def as_stream(source: ScanSource) -> io.BufferedReader:
    """Return bytes as a file object that Python's own readers of archives take.

    Raises `LimitError` if they ask for more than a header.
    """
    return _Limited(source)
