"""The interface of every storage: what is there, readers of ranges, and writers."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NamedTuple, Protocol

from weightctl.errors import OutputError
from weightctl.system.temporary import without_temporary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.storage.byte_range import FileRange

__all__ = [
    "Bytes",
    "CommitOptions",
    "Entry",
    "Reader",
    "Store",
    "StoredObject",
    "UploadedPart",
    "Uploads",
    "Writer",
    "cannot_write",
]

Bytes = bytes | bytearray | memoryview


class Entry(NamedTuple):
    """A file or directory, and the bytes of a file."""

    is_directory: bool
    size: int = 0


class Store(Protocol):
    """A storage other than local files; paths are URLs."""

    def open(self, path: str) -> Reader:
        """Open a file for reading; raises `FormatError` if it cannot be opened."""
        ...

    def find(self, path: str) -> Entry | None:
        """Return what is at a path, None if nothing is; raises `FormatError` if it cannot tell."""
        ...

    def list_names(self, directory: str) -> Mapping[str, Entry]:
        """Return what a directory contains, by name; raises `FormatError` if it cannot tell."""
        ...

    def prepare(self, paths: Sequence[str]) -> None:
        """Prepare to open files that will all be read; errors are raised when they are."""
        ...

    def uploads(self, path: str) -> Uploads:
        """Return what writes objects; raises `OutputError` if the storage cannot be written."""
        ...

    def refresh(self, path: str) -> None:
        """Forget what is known about a path and its directory, so that it is asked for again."""
        ...


class CommitOptions(NamedTuple):
    """How an output gets into a repository.

    A repository that is made for it is `private`. With `pull_request`, the output is proposed, and
    visible to who opens the request.
    """

    private: bool = False
    pull_request: bool = False


class UploadedPart(NamedTuple):
    """A part of an upload that the store has: its ETag and its bytes."""

    tag: str
    nbytes: int


class StoredObject(NamedTuple):
    """An object of a store: its bytes, its ETag, and the second of its last write."""

    nbytes: int
    tag: str
    written: float


class Uploads(Protocol):
    """Writes objects of a store; every method may raise `OutputError`, and any thread may call it.

    An object is uploaded in numbered parts, which may come in any order, and appears when the
    upload is complete. `least_part` is the least size of each part but the last, and `most_parts`
    the largest number of parts.
    """

    @property
    def least_part(self) -> int:
        """The least bytes of a part."""
        ...

    @property
    def most_parts(self) -> int:
        """The most parts of an object."""
        ...

    def create(self, path: str) -> str:
        """Begin an upload in parts; return its id."""
        ...

    def put_part(self, path: str, upload: str, number: int, data: Bytes) -> UploadedPart:
        """Upload part `number`, from 1; a part of this number is replaced."""
        ...

    def can_copy(self, source: str) -> bool:
        """Whether the store can copy bytes of the object at a URL."""
        ...

    def copy_part(
        self, path: str, upload: str, number: int, source: FileRange
    ) -> UploadedPart | None:
        """Have the store copy a range of another object as a part; None if it cannot."""
        ...

    def list_parts(self, path: str, upload: str) -> Mapping[int, UploadedPart] | None:
        """Return the parts that were uploaded, by number; None if the upload does not exist."""
        ...

    def complete(
        self, path: str, upload: str, parts: Mapping[int, UploadedPart], *, force: bool
    ) -> None:
        """Make an object of parts; it appears whole. Without `force` nothing is replaced."""
        ...

    def abort(self, path: str, upload: str) -> None:
        """End an upload, and remove its parts; do nothing if it has ended."""
        ...

    def put(self, path: str, content: Bytes, *, force: bool) -> None:
        """Write a small object; it appears whole. Without `force` nothing is replaced."""
        ...

    def read(self, path: str, start: int = 0, nbytes: int | None = None) -> bytes:
        """Return the content of a small object, or `nbytes` of it from `start` on."""
        ...

    def delete(self, paths: Sequence[str]) -> None:
        """Remove objects; what does not exist is left out."""
        ...

    def list_objects(self, prefix: str) -> Mapping[str, StoredObject]:
        """Return the objects whose URLs begin with `prefix`, by URL."""
        ...


class Reader(Protocol):
    """A file, wherever it is, that is read by ranges.

    `path` is what messages call it, and `size` the number of its bytes. `written` is the time of
    the last write in nanoseconds, or a number made from the version of an object. Both are those
    of when it was opened. `tag` is the ETag of a remote file, and empty for others.
    """

    path: str
    size: int
    written: int

    tag: str

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

    def expect(self, offset: int, nbytes: int) -> bool:
        """Prepare for a read that will follow, as far as the file has the bytes.

        Returns False if only a part of them, or nothing, could be prepared for now.
        """
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

    def list_reads(self, offset: int, source: FileRange, /) -> list[FileRange]:
        """Return the ranges of `source` that `copy` would read."""
        ...

    def mark(self) -> frozenset[int]:
        """Return a mark for all that was written so far, which `is_durable` takes."""
        ...

    def is_durable(self, mark: frozenset[int], /) -> bool:
        """Whether all that was written before a mark is durable, after a call of `sync`."""
        ...

    def sync(self) -> None:
        """Make what was written durable, as far as that can be done now; raises `OutputError`."""
        ...

    def stop(self) -> None:
        """Have threads that wait in `write` for those of other threads raise `OutputError`."""
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
