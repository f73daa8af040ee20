"""Sources of data for a scan: a file, a range of other data, or decompressed data."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from weightctl.formats.pickles.memory import LimitError
from weightctl.formats.pickles.scan import Reading
from weightctl.storage.local import FileReader

if TYPE_CHECKING:
    from weightctl.storage.base import Reader

_UNPACKED = 1 << 30
# The limit on decompressed data, as a multiple of the size of the file. Tensors can hardly be
# compressed, but a member can be decompressed several times.
_UNPACKED_PER_BYTE = 16
_MEMBERS = 1 << 20
_READ = 1 << 25
_LARGEST_HEADER = 1 << 25


class Budget:
    """Limits on the work for one file, so that a small file cannot keep a scan busy.

    `reading` limits the number of opcodes. Methods raise `LimitError` if a limit is exceeded.
    """

    def __init__(self, nbytes: int) -> None:
        self._members = _MEMBERS
        self._most_unpacked = max(_UNPACKED, _UNPACKED_PER_BYTE * nbytes)
        self._unpacked = self._most_unpacked
        # Each byte of the file can be read in several ways.
        self.reading = Reading(4 * nbytes + _READ)

    def unpack(self, nbytes: int) -> None:
        self._unpacked -= nbytes
        if self._unpacked < 0:
            raise LimitError(f"its unpacked size is more than {self._most_unpacked >> 20} MiB")

    def enter(self, count: int = 1) -> None:
        """Count members of a container, or consecutive pickles."""
        self._members -= count
        if self._members < 0:
            raise LimitError(f"it has more than {_MEMBERS} members or pickles")


class ScanSource(Protocol):
    """Data that is read on demand.

    `base` is added to the offsets that are reported.
    """

    base: int

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return up to `nbytes` bytes at `offset`; fewer at the end."""
        ...

    def size(self) -> int:
        """Return the size in bytes; compressed data is decompressed for this."""
        ...


class WholeFile:
    """The data of a whole file."""

    def __init__(self, file: Reader) -> None:
        self.base = 0
        self._file = file
        self.read = file.read

    def size(self) -> int:
        """Return the size of the file."""
        return self._file.size


class Slice:
    """A range of other data, such as an uncompressed member of an archive."""

    def __init__(self, source: ScanSource, start: int, length: int) -> None:
        self.base = source.base + start
        self._source, self._start, self._length = source, start, length

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return up to `nbytes` bytes at `offset` of the range."""
        nbytes = min(nbytes, self._length - offset)
        return self._source.read(self._start + offset, nbytes) if nbytes > 0 else b""

    def size(self) -> int:
        """Return the length of the range."""
        return self._length


class EnclosedFile(FileReader):
    """A file within a file, for code that reads files only."""

    def __init__(self, path: str, source: ScanSource) -> None:
        self.path = path
        self.size = source.size()
        self.written = 0
        self._source = source

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return up to `nbytes` bytes at `offset`; fewer at the end."""
        return self._source.read(offset, max(nbytes, 0))


class ScanPlace(NamedTuple):
    """A place to scan: its data, the path of the file, and the members that lead to it.

    `name` is the file name of the data. `is_storage` is true if the data is a tensor's elements;
    `is_script` is as in `Scanned`.
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
    """A source as a Python file object."""

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
    """A file object that limits the bytes of a read, whatever an archive's headers state."""

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
    """Return a source as a file object for Python's own readers of archives.

    Reading raises `LimitError` if they read more than a header at once.
    """
    return _Limited(source)
