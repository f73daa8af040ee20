"""The hash of a remote file whose bytes arrive nearly in order."""

from __future__ import annotations

from hashlib import sha1, sha256
from threading import Lock, RLock
from typing import TYPE_CHECKING

from weightctl.errors import FormatError

if TYPE_CHECKING:
    from weightctl.storage.base import Bytes

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
        """Drop what is kept."""
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
