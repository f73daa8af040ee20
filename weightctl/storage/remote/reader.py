"""Reads remote files by ranges, and compares their bytes with the hash that the store states."""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import sha1, sha256
from threading import Lock, RLock
from typing import TYPE_CHECKING, NamedTuple, Protocol

from weightctl.errors import FormatError
from weightctl.storage.base import Reader
from weightctl.storage.files import open_reader
from weightctl.storage.remote.failures import ChangedObjectError, translate_error
from weightctl.storage.remote.prefetch import CHUNK, ReadAhead
from weightctl.storage.remote.requests import repeat
from weightctl.storage.traffic import TRAFFIC
from weightctl.system.files import wait_for_room, write_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weightctl.storage.base import Bytes

# The sizes of blocks for small reads, as of headers. Each block of a sequence is larger than the
# block before.
FIRST_BLOCK, _LARGEST_BLOCK = 1 << 17, 1 << 20
_END_BLOCK = 1 << 16
_BLOCKS = 8
# If a read begins at most this number of bytes after a block, the gap is requested as well.
_LARGEST_GAP = 1 << 16


class RemoteObject(NamedTuple):
    """The version of an object that all reads must find.

    `tag` is its ETag, empty if unknown, `written` the time of its last write in seconds, 0 if
    unknown, and `stated` the hash that the store states of its content (`ArrivingHash`).
    """

    size: int
    tag: str = ""
    written: float = 0.0
    stated: str = ""

    @property
    def version(self) -> int:
        """A number that is different for another version of the object."""
        if self.tag:
            from hashlib import sha256

            return int.from_bytes(sha256(self.tag.encode()).digest()[:7], "big")
        return int(self.written * 1_000_000_000)

    def refuse_other(self, other: RemoteObject) -> None:
        """Raise `ChangedObjectError` if `other` is another version of the object."""
        known = self.tag and other.tag
        same = self.tag == other.tag if known else int(self.written) == int(other.written)
        if self.size != other.size or not same:
            raise ChangedObjectError


class Fetch(Protocol):
    """A function that requests a range of an object.

    The function and its iterator raise obstore's errors.
    """

    def __call__(self, start: int, stop: int, /) -> tuple[Iterator[Bytes], RemoteObject]:
        """Return an iterator over the bytes from `start` to `stop`, and the object's version."""
        ...


class RemoteReader(Reader):
    """A remote file that is read by ranges, all from one version of the object.

    Small reads, as of headers, request blocks, which are kept for later reads. `known` is the
    version of the object, and `first` the block at its beginning, if already read. `check` requests
    the current version; it is None if objects never change.
    """

    def __init__(
        self,
        path: str,
        fetch: Fetch,
        known: RemoteObject,
        check: Callable[[], RemoteObject] | None,
        first: Bytes = b"",
    ) -> None:
        self.path = path
        self.size = known.size
        self.written = known.version
        self.tag = known.tag
        self._fetch = fetch
        self._check = check
        self._object = known
        self._lock = Lock()
        self._blocks: list[tuple[int, Bytes]] = [(0, first)] if first else []
        self._next_block = 2 * FIRST_BLOCK if first else FIRST_BLOCK
        self._ahead = ReadAhead(self._request, self.size)
        self._arriving = ArrivingHash(path, known.size, known.stated)
        self._arriving.add(0, [first])

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return (open_reader, (self.path,))

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Drop the chunks that were fetched ahead."""
        self._ahead.close()
        self._arriving.close()

    def read_first_block(self) -> Bytes:
        """Return the beginning of the object, which usually contains the whole header."""
        return self._block(0, min(FIRST_BLOCK, self.size))[1] if self.size else b""

    def _request(self, start: int, stop: int) -> list[Bytes]:
        """Request a range, and return its bytes in pieces.

        After a temporary failure, only the bytes that have not arrived are requested again. Raises
        `FormatError` if the request fails, or if the whole file has another hash than is stated.
        """
        received: list[Bytes] = []
        at = start

        def fetch() -> None:
            nonlocal at
            began = at
            arriving, found = self._fetch(at, stop)
            self._object.refuse_other(found)
            try:
                for data in arriving:
                    received.append(data)
                    at += len(data)
            finally:
                TRAFFIC.count(read=at - began)
            if at != stop:
                failure = ConnectionError(f"{at - start} of {stop - start} bytes were received")
                if at > stop:
                    received.clear()
                    at = start
                raise failure

        try:
            repeat(fetch, self.path)
        except Exception as error:
            raise translate_error(error, self.path) from error
        self._arriving.add(start, received)
        return received

    def read(self, offset: int, nbytes: int) -> bytes:
        wanted = min(nbytes, self.size - offset)
        if wanted <= 0:
            return b""
        if wanted >= CHUNK:
            made = bytearray(wanted)
            self.read_into(offset, memoryview(made))
            return bytes(made)
        start, block = self._block(offset, wanted)
        return bytes(memoryview(block)[offset - start : offset - start + wanted])

    def _block(self, offset: int, nbytes: int) -> tuple[int, Bytes]:
        """Return the offset and the bytes of a block that contains a range."""
        with self._lock:
            for start, block in self._blocks:
                if start <= offset and offset + nbytes <= start + len(block):
                    return start, block
            stop = offset + nbytes
            before = self._find_before(offset)
            if before is not None:
                # Bytes of the block are not requested again.
                start, known = before
                at = start + len(known)
                offset = min(offset, at)
                known = known[offset - start :]
                stop = max(stop, at + self._next_block)
                self._next_block = min(2 * self._next_block, _LARGEST_BLOCK)
            else:
                known = memoryview(b"")
                # A read at the end of the file is probably that of a zip file's directory.
                if stop == self.size:
                    offset = max(min(offset, self.size - _END_BLOCK), 0)
                at, stop = offset, max(stop, offset + FIRST_BLOCK)
            block = b"".join([known, *self._request(at, min(stop, self.size))])
            # The first block is kept: the beginning of a header is read again after its end.
            self._blocks = [
                *self._blocks[:1], *self._blocks[1:][-_BLOCKS + 2 :], (offset, block)
            ]  # fmt: skip
            return offset, block

    def _find_before(self, offset: int) -> tuple[int, memoryview] | None:
        """Return the offset and bytes of the block that a read at `offset` continues.

        A small gap may follow the block. Return None if no block is near.
        """
        found = (
            (start, memoryview(block))
            for start, block in self._blocks
            if start <= offset <= start + len(block) + _LARGEST_GAP
        )
        return max(found, key=lambda each: each[0] + len(each[1]), default=None)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes at `offset`, which may have been fetched ahead."""

        def use(start: int, data: memoryview) -> None:
            buffer[start - offset : start - offset + len(data)] = data

        self._take(offset, len(buffer), use)

    def _take(self, offset: int, nbytes: int, use: Callable[[int, memoryview], object]) -> None:
        """Call `use` with the pieces of a range, which may have been fetched ahead.

        Raises `FormatError` if the range cannot be read.
        """
        stop = offset + nbytes
        if stop > self.size:
            raise FormatError(self.path, self.size, "the file ends here")
        # Another thread may read, and so drop, chunks that were there before.
        while not self._ahead.take(offset, stop, use):
            self._ahead.expect(offset, nbytes, is_needed=True)

    def copy_into(self, offset: int, nbytes: int, descriptor: int, at: int | None = None) -> int:
        """Write received bytes to a file descriptor, without a copy in memory.

        Return the number of bytes that were written, which may be 0. Raises `FormatError` if the
        range cannot be read.
        """
        written = 0

        def use(_: int, data: memoryview) -> None:
            nonlocal written
            while data:
                try:
                    if at is None:
                        count = os.write(descriptor, data)
                    else:
                        count = write_at(descriptor, data, at + written)
                except BlockingIOError:
                    wait_for_room(descriptor)
                    continue
                written, data = written + count, data[count:]

        # The caller writes the remaining bytes, and raises the error if that fails.
        with suppress(OSError):
            self._take(offset, min(nbytes, CHUNK), use)
        return written

    def expect(self, offset: int, nbytes: int) -> bool:
        return self._ahead.expect(offset, nbytes)

    def refuse_change(self) -> None:
        """Raise `FormatError` if the object has changed since then, or does not have its hash."""
        self._arriving.refuse_other()
        if self._check is None:
            return
        try:
            self._object.refuse_other(repeat(self._check, self.path))
        except Exception as error:
            raise translate_error(error, self.path) from error


# The number of bytes that all files together keep because bytes before them are missing.
_MOST_KEPT = 64 << 20
# A reader that is deleted gives bytes back, also while others take some.
_KEPT_LOCK = RLock()
_kept = 0


def _keep(nbytes: int) -> bool:
    """Count kept bytes, or fewer of them; return False at the limit."""
    global _kept  # noqa: PLW0603
    with _KEPT_LOCK:
        if nbytes > 0 and _kept + nbytes > _MOST_KEPT:
            return False
        _kept += nbytes
        return True


class ArrivingHash:
    """Compares the bytes of a file with the hash that the store states.

    `stated` is a SHA-256, or the id that Git has for a small file. The bytes are not compared if a
    part of the file is not read, or is read long after bytes that follow it.
    """

    def __init__(self, path: str, size: int, stated: str) -> None:
        self._path, self._size, self._stated = path, size, stated
        is_of_git = len(stated) == 40
        begin = b"blob %d\0" % size
        self._hash = sha1(begin, usedforsecurity=False) if is_of_git else sha256()
        self._at = 0
        self._later: list[tuple[int, list[Bytes]]] = []
        self._is_open = bool(stated and size)
        self._is_other = False
        self._lock = Lock()

    def add(self, start: int, pieces: list[Bytes]) -> None:
        """Take bytes from `start` on; raises `FormatError` if all have another hash."""
        with self._lock:
            if not self._is_open:
                return
            if start > self._at:
                if _keep(sum(map(len, pieces))):
                    self._later.append((start, pieces))
                    self._later.sort(key=lambda each: each[0])
                else:
                    self._close()
                return
            self._feed(start, pieces)
            while self._later and self._later[0][0] <= self._at:
                start, pieces = self._later.pop(0)
                _keep(-sum(map(len, pieces)))
                self._feed(start, pieces)
            if self._at == self._size:
                self._is_other = self._hash.hexdigest() != self._stated
                self._close()
        self.refuse_other()

    def _feed(self, start: int, pieces: list[Bytes]) -> None:
        for piece in pieces:
            fresh = memoryview(piece)[max(self._at - start, 0) :]
            self._hash.update(fresh)
            start += len(piece)
            self._at += len(fresh)

    def _close(self) -> None:
        self._is_open = False
        _keep(-sum(len(piece) for _, pieces in self._later for piece in pieces))
        self._later.clear()

    def close(self) -> None:
        with self._lock:
            self._close()

    def refuse_other(self) -> None:
        """Raise `FormatError` if all bytes have arrived, and have another hash than is stated."""
        if self._is_other:
            raise FormatError(
                self._path,
                None,
                "the received bytes do not have the hash that the Hub states for this file "
                f"({self._stated[:12]}...)",
                hint="run the command again; if it fails again, the Hub or a proxy sends other "
                "bytes",
            )
