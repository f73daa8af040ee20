"""The interfaces of storages: entries, readers of byte ranges, and writers."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from weightctl.errors import FormatError, OutputError
from weightctl.system.files import explain_open_file
from weightctl.system.temporary import without_temporary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


Bytes = bytes | bytearray | memoryview
_CHUNK = 1 << 20


class Entry(NamedTuple):
    """A file or a directory; `size` is the number of bytes of a file."""

    is_directory: bool
    size: int = 0


@runtime_checkable
class Store(Protocol):
    """A storage other than local files; paths are URLs.

    A subclass opens, finds and lists files; by default, it is read-only, and has no caches.
    """

    def open(self, path: str) -> Reader:
        """Open a file for reading; raises `FormatError` if it cannot be opened."""
        ...

    def find(self, path: str) -> Entry | None:
        """Return the entry at a path, or None; raises `FormatError` if the request fails."""
        ...

    def list_names(self, directory: str) -> Mapping[str, Entry]:
        """Return the entries of a directory by name; raises `FormatError` if the request fails."""
        ...

    def prepare(self, paths: Sequence[str]) -> None:
        """Prepare for opening several files; errors are raised when a file is opened."""
        ...

    def uploads(self, path: str) -> Uploads:
        """Return the interface for writing; raises `OutputError` if the storage is read-only."""
        raise OutputError(
            f"{path}: weightctl cannot write to {path.partition(':')[0]}:// URLs",
            hint="write to a local path, and upload it with the tool of the store",
        )

    def refresh(self, path: str) -> None:
        """Remove a path and its directory from caches, so that they are requested again."""
        ...


class CommitOptions(NamedTuple):
    """Options for writing an output into a repository.

    If the repository is created, `private` says whether it is private. If `pull_request` is set,
    the output is in a pull request, and not on the main branch.
    """

    private: bool = False
    pull_request: bool = False


class UploadedPart(NamedTuple):
    """A part of an upload that the store has received: its ETag and its size."""

    tag: str
    nbytes: int


class StoredObject(NamedTuple):
    """An object of a store: its size, its ETag, and the time of its last write in seconds."""

    nbytes: int
    tag: str
    written: float


class Uploads(Protocol):
    """Writes objects of a store. Every method may raise `OutputError`, and is thread-safe.

    An object is uploaded in numbered parts, in any order, and appears when the upload is completed.
    All parts except the last have at least `least_part` bytes, and an object has at most
    `most_parts` parts.
    """

    least_part: int
    most_parts: int

    def create(self, path: str) -> str:
        """Begin an upload in parts, and return its id."""
        ...

    def put_part(self, path: str, upload: str, number: int, data: Bytes) -> UploadedPart:
        """Upload part `number`, counted from 1; an earlier part of this number is replaced."""
        ...

    def can_copy(self, source: str) -> bool:
        """Whether the store can copy bytes of the object at a URL."""
        del source
        return False

    def copy_part(
        self, path: str, upload: str, number: int, source: FileRange
    ) -> UploadedPart | None:
        """Make the store copy a range of another object as a part; return None if it cannot."""
        del path, upload, number, source
        return None

    def list_parts(self, path: str, upload: str) -> Mapping[int, UploadedPart] | None:
        """Return the parts that were uploaded, by number; None if the upload does not exist."""
        ...

    def complete(
        self, path: str, upload: str, parts: Mapping[int, UploadedPart], *, force: bool
    ) -> None:
        """Complete an upload, so that the object appears.

        Raises `OutputError` if the object exists and `force` is not set.
        """
        ...

    def abort(self, path: str, upload: str) -> None:
        """Abort an upload, and remove its parts; do nothing if it does not exist."""
        ...

    def put(self, path: str, content: Bytes, *, force: bool) -> None:
        """Write a small object in one request.

        Raises `OutputError` if the object exists and `force` is not set.
        """
        ...

    def read(self, path: str, start: int = 0, nbytes: int | None = None) -> bytes:
        """Return the content of a small object from `start` on, at most `nbytes` if given."""
        ...

    def delete(self, paths: Sequence[str]) -> None:
        """Remove objects; objects that do not exist are ignored."""
        ...

    def list_objects(self, prefix: str) -> Mapping[str, StoredObject]:
        """Return the objects whose URLs begin with `prefix`, by URL."""
        ...


class Reader(Protocol):
    """A local or remote file that is read by byte ranges.

    `path` is its name in messages, and `size` the number of its bytes. `written` is the time of the
    last write in nanoseconds, or a number that is derived from the version of an object. `size` and
    `written` do not change after opening. `tag` is the ETag of a remote file, empty for others.

    A subclass sets `path`, `size` and `written`, and reads; by default, it prepares nothing, and
    cannot find that a file has changed.
    """

    path: str
    size: int
    written: int

    tag: str = ""

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return `nbytes` at `offset`, or fewer if the file ended earlier when it was opened.

        Raises `FormatError` if the file cannot be read or has become shorter.
        """
        ...

    def read_end(self, nbytes: int) -> bytes:
        """Return the last `nbytes` of the file, or all of a smaller file.

        Raises the errors of `read`.
        """
        return self.read(max(self.size - nbytes, 0), nbytes)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes at `offset`; raises the errors of `read`."""
        found = self.read(offset, len(buffer))
        if len(found) < len(buffer):
            raise FormatError(self.path, offset + len(found), "the file ends here")
        buffer[:] = found

    def range(self, start: int = 0, stop: int | None = None) -> FileRange:
        """Return a range of the file's bytes, which are read on demand."""
        return FileRange(self, 0, self.size).part(start, self.size if stop is None else stop)

    def private(self, offset: int, nbytes: int) -> memoryview:
        """Return a writable view of a range; changes in it are not written to the file.

        Raises `FormatError` if the file cannot be read or has become shorter.
        """
        made = memoryview(bytearray(nbytes))
        self.read_into(offset, made)
        return made

    def copy_into(self, offset: int, nbytes: int, descriptor: int, at: int | None = None) -> int:
        """Copy bytes to a file descriptor without reading them; return how many were copied.

        The bytes are written at offset `at`, or appended if `at` is None. The result may be smaller
        than `nbytes`; 0 means that the caller has to read the bytes.
        """
        del offset, nbytes, descriptor, at
        return 0

    def expect(self, offset: int, nbytes: int) -> bool:
        """Prepare for a later read of a range, up to the end of the file.

        Return False if not all of the range could be prepared at this time.
        """
        del offset, nbytes
        return True

    def refuse_change(self) -> None:
        """Raise `FormatError` if the file has changed since it was opened."""
        ...

    def close(self) -> None:
        """Close the file; reading it afterwards raises an error."""
        ...


class Writer:
    """A destination of known length; ranges may be written in any order and from any thread.

    A subclass writes and copies; by default, written bytes are durable after `sync`, and no thread
    waits for others.
    """

    path: str

    def write(self, offset: int, data: Bytes, /) -> None:
        """Write bytes at an offset; raises `OutputError` if that fails."""
        raise NotImplementedError

    def copy(self, offset: int, source: FileRange, /) -> None:
        """Write a range of another file at an offset.

        Raises `OutputError` if it cannot be written, and `FormatError` if it cannot be read.
        """
        raise NotImplementedError

    def list_reads(self, offset: int, source: FileRange, /) -> list[FileRange]:
        """Return the ranges of `source` that `copy` would read."""
        del offset
        return [source]

    def mark(self) -> frozenset[int]:
        """Return a mark, for `is_durable`, of everything that was written so far."""
        return frozenset()

    def is_durable(self, mark: frozenset[int], /) -> bool:
        """Whether everything that was written before a mark is durable; call `sync` first."""
        return not mark

    def sync(self) -> None:
        """Make written bytes durable, as far as possible at this time.

        Raises `OutputError` if that fails.
        """

    def stop(self) -> None:
        """Make threads that wait in `write` for other threads raise `OutputError`."""

    def close(self) -> None:
        """End writing, and release the destination."""


def cannot_write(path: str, error: OSError) -> OutputError:
    """Return the error for an output that the file system does not accept.

    Temporary names in `path` are replaced by the final names.
    """
    hints = {
        errno.ENOSPC: "free some disk space",
        errno.EDQUOT: "your disk quota is used up",
        errno.EFBIG: (
            "the file system or a limit (`ulimit -f`) does not allow a file of this size"
        ),
        errno.EMFILE: "this process cannot open more files; raise the limit with `ulimit -n`",
        errno.EPIPE: "the reader closed the pipe before the end",
    }
    target = os.sep.join(map(without_temporary, path.split(os.sep)))
    hint = explain_open_file(error) or hints.get(error.errno or 0, "")
    return OutputError(f"{target} cannot be written: {error.strerror}", hint=hint)


# Ranges of bytes, in a file or in memory, that are read on demand.


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


@dataclass(slots=True, unsafe_hash=True)
class FileRange:
    """A range of `nbytes` in a file, at `offset`, which is read on demand."""

    file: Reader
    offset: int
    nbytes: int

    def __len__(self) -> int:
        return self.nbytes

    def read(self, start: int, nbytes: int) -> bytes:
        """Read bytes of the range from the file."""
        return self.file.read(self.offset + start, min(nbytes, self.nbytes - start))

    def part(self, start: int, stop: int) -> FileRange:
        """Return a part of the range, without reading."""
        start, stop = _clip_range(start, stop, self.nbytes)
        return FileRange(self.file, self.offset + start, stop - start)

    def join(self, other: FileRange) -> FileRange | None:
        """Return this range and `other` as one; None if they are not adjacent in one file."""
        is_next = other.file is self.file and other.offset == self.offset + self.nbytes
        return FileRange(self.file, self.offset, self.nbytes + other.nbytes) if is_next else None

    def read_chunks(self) -> Iterator[tuple[int, memoryview]]:
        """Yield chunks with their offsets in the range; each is valid until the next one."""
        buffer = memoryview(bytearray(min(self.nbytes, _CHUNK)))
        for start in range(0, self.nbytes, _CHUNK):
            chunk = buffer[: self.nbytes - start]
            self.file.read_into(self.offset + start, chunk)
            yield start, chunk

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
