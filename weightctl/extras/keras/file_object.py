"""A file of weightctl as the file object that h5py reads."""

from __future__ import annotations

import os
from io import RawIOBase
from typing import Any, Protocol

_PAGE = 1 << 16
_MOST_PAGES = 256


class PagedSource(Protocol):
    """A file whose structure is read; `path` is its name in messages."""

    path: str
    size: int

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return `nbytes` at `offset`, or fewer if the file ends earlier."""
        ...


class PagedFile(RawIOBase):
    """Reads whole pages and keeps some of them, because HDF5 reads a few bytes at a time."""

    def __init__(self, file: PagedSource) -> None:
        super().__init__()
        self._file, self._at = file, 0
        self._pages: dict[int, bytes] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set the position of the next read, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer, or its beginning if the file ends earlier; return the bytes read."""
        into = memoryview(buffer).cast("B")
        done = 0
        while done < len(into):
            number, start = divmod(self._at, _PAGE)
            piece = self._page(number)[start : start + len(into) - done]
            if not piece:
                break
            into[done : done + len(piece)] = piece
            done += len(piece)
            self._at += len(piece)
        return done

    def _page(self, number: int) -> bytes:
        page = self._pages.get(number)
        if page is None:
            if len(self._pages) >= _MOST_PAGES:
                self._pages.clear()
            page = (
                self._file.read(number * _PAGE, _PAGE) if number * _PAGE < self._file.size else b""
            )
            self._pages[number] = page
        return page
