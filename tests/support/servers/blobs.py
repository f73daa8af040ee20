"""The bytes of objects and bodies: chunks of memory and of files, shared and never copied."""

from __future__ import annotations

import hashlib
import os
import tempfile
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator

    from typing_extensions import Buffer

# As much as is read of a file at a time, where its bytes are needed in memory.
CHUNK = 1 << 20


class OpenFile:
    """A file without a name: its bytes are freed when nothing refers to it."""

    def __init__(self, directory: str) -> None:
        self.number, path = tempfile.mkstemp(dir=directory)
        os.unlink(path)

    @classmethod
    def of(cls, path: str) -> OpenFile:
        """Return the file at a path, open for reading."""
        self = cls.__new__(cls)
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self

    def __del__(self) -> None:
        # A file that could not be opened has no number.
        if hasattr(self, "number"):
            os.close(self.number)


class FileChunk(NamedTuple):
    """A byte range of an open file."""

    file: OpenFile
    start: int
    stop: int


Chunk = memoryview | FileChunk


def _length(chunk: Chunk) -> int:
    return chunk.stop - chunk.start if isinstance(chunk, FileChunk) else chunk.nbytes


def _cut(chunk: Chunk, start: int, stop: int) -> Chunk:
    if isinstance(chunk, FileChunk):
        return FileChunk(chunk.file, chunk.start + start, chunk.start + stop)
    return chunk[start:stop]


class Blob:
    """Bytes that do not change, as a list of chunks.

    A large object for a benchmark costs little memory as one chunk, repeated: `Blob([chunk] * n)`.
    """

    def __init__(self, chunks: Iterable[Buffer | FileChunk] = ()) -> None:
        self.chunks: tuple[Chunk, ...] = tuple(
            chunk if isinstance(chunk, FileChunk) else memoryview(chunk).cast("B")
            for chunk in chunks
        )
        self.size = sum(map(_length, self.chunks))

    @classmethod
    def of(cls, content: Blob | Buffer) -> Blob:
        """Return the content as a blob."""
        return content if isinstance(content, Blob) else cls([content])

    @classmethod
    def of_file(cls, path: str) -> Blob:
        """Return the bytes of the file at a path."""
        file = OpenFile.of(path)
        return cls([FileChunk(file, 0, os.fstat(file.number).st_size)])

    @classmethod
    def joined(cls, blobs: Iterable[Blob]) -> Blob:
        """Return the bytes of all blobs, in order."""
        return cls(chunk for blob in blobs for chunk in blob.chunks)

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return b"".join(self.views())

    def cut(self, start: int, stop: int) -> Blob:
        """Return the bytes from `start` up to `stop`."""
        found = list[Chunk]()
        at = 0
        for chunk in self.chunks:
            end = at + _length(chunk)
            if end > start and at < stop:
                found.append(_cut(chunk, max(start - at, 0), min(stop, end) - at))
            at = end
        return Blob(found)

    def views(self) -> Iterator[memoryview]:
        """Yield the bytes in order; those of files are read in steps."""
        for chunk in self.chunks:
            if isinstance(chunk, FileChunk):
                for at in range(chunk.start, chunk.stop, CHUNK):
                    size = min(CHUNK, chunk.stop - at)
                    yield memoryview(os.pread(chunk.file.number, size, at))
            else:
                yield chunk

    def hash(self, algorithm: str) -> bytes:
        """Return the digest of the bytes: "md5", "sha256" or another name of hashlib."""
        digest = hashlib.new(algorithm, usedforsecurity=False)
        for view in self.views():
            digest.update(view)
        return digest.digest()

    def send(self, connection: socket.socket) -> None:
        """Send the bytes; the operating system reads those of files.

        Raises UnsentError if the connection is lost, or if a file is shorter than it was.
        """
        sent = 0
        try:
            for chunk in self.chunks:
                at = 0
                while at < _length(chunk):
                    rest = _cut(chunk, at, _length(chunk))
                    if isinstance(rest, FileChunk):
                        size = rest.stop - rest.start
                        step = os.sendfile(connection.fileno(), rest.file.number, rest.start, size)
                    else:
                        step = connection.send(rest)
                    if step == 0:
                        raise UnsentError(sent)
                    at += step
                    sent += step
        except OSError as error:
            raise UnsentError(sent) from error


class UnsentError(OSError):
    """The rest of a blob could not be sent. `sent` is the number of bytes before it."""

    def __init__(self, sent: int) -> None:
        super().__init__(f"the connection was lost after {sent} bytes")
        self.sent = sent


def spooled(pieces: Iterable[memoryview], directory: str) -> Blob:
    """Write bytes to a nameless file in the directory, and return them."""
    file = OpenFile(directory)
    size = 0
    for piece in pieces:
        rest = piece
        while rest.nbytes:
            written = os.pwrite(file.number, rest, size)
            rest = rest[written:]
            size += written
    return Blob([FileChunk(file, 0, size)])
