"""Compressed bytes, unpacked as they are read: a part of them is kept, and never all."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.formats.scanning.sources import Budget, ScanSource

__all__ = ["Damaged", "Decompressor", "Unpacked", "bzip2", "lzma_alone", "make_inflater", "xz"]

_FED = 1 << 12
_UNPACKED = 1 << 18
_KEPT = 1 << 24
_LZMA_MEMORY = 1 << 28
_CUT = "the compressed data is incomplete"


class Damaged(ValueError):  # noqa: N818  # it is raised where data is damaged
    """Compressed data is not what it should be."""


class Decompressor(Protocol):
    """What unpacks a stream, as the classes of `bz2` and `lzma` do."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""
        ...

    @property
    def needs_input(self) -> bool:
        """Whether it gives nothing more before it is given more."""
        ...

    @property
    def unused_data(self) -> bytes:
        """What it was given after the end of the stream."""
        ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """Return what bytes unpack to, or the first part of that."""
        ...


class _Inflated:
    """DEFLATE, as it is without a header and a checksum.

    Nobody checks before a pickle is loaded, and so no checksum is looked at here.
    """

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
        self._rest = b""

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def needs_input(self) -> bool:
        return not self._rest and not self.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        made = self._stream.decompress(self._rest + data, max_length)
        self._rest = self._stream.unconsumed_tail
        return made


def make_inflater() -> Decompressor:
    """Return what unpacks DEFLATE."""
    return _Inflated()


def bzip2() -> Decompressor:
    """Return what unpacks bzip2."""
    return bz2.BZ2Decompressor()


def xz() -> Decompressor:
    """Return what unpacks xz."""
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, _LZMA_MEMORY)


def lzma_alone() -> Decompressor:
    """Return what unpacks LZMA with its old header."""
    return lzma.LZMADecompressor(lzma.FORMAT_ALONE, _LZMA_MEMORY)


class Unpacked:
    """What compressed bytes unpack to; `problem` says why not all of that could be had.

    A stream may follow another: `following` returns where the data of the one at a place starts,
    and None if there is none. `head` is put before the bytes.
    """

    def __init__(
        self,
        source: ScanSource,
        create: Callable[[], Decompressor],
        following: Callable[[int], int | None],
        budget: Budget,
        *,
        trailer: int = 0,
        head: bytes = b"",
    ) -> None:
        self.base = 0
        self.problem = ""
        self._source, self._create, self._following = source, create, following
        self._trailer, self._budget, self._head = trailer, budget, head
        self._begin()

    def _begin(self) -> None:
        self._kept = bytearray()
        self._start = 0
        self._is_complete = False
        self._open(0)

    def _open(self, at: int) -> bool:
        """Begin to unpack the stream at a place; return whether there is one."""
        try:
            start = self._following(at)
        except Damaged as error:
            self._end(str(error))
            return False
        if start is None:
            return False
        self._at = start
        self._stream = self._create()
        self._pending = self._head
        return True

    def _end(self, problem: str = "") -> None:
        self._is_complete = True
        self.problem = self.problem or problem

    def read(self, offset: int, nbytes: int) -> bytes:
        """Unpack up to the bytes that are asked for; what is before those kept, once more."""
        if offset < self._start:
            self._begin()
        while not self._is_complete and self._start + len(self._kept) < offset + nbytes:
            self._advance()
            if len(self._kept) > 2 * _KEPT and self._start + len(self._kept) < offset:
                self._drop(_KEPT)
        place = offset - self._start
        found = bytes(self._kept[place : place + nbytes])
        if len(self._kept) > 2 * _KEPT:
            self._drop(_KEPT)
        return found

    def size(self) -> int:
        """Unpack all."""
        while not self._is_complete:
            self._advance()
            if len(self._kept) > 2 * _KEPT:
                self._drop(_KEPT)
        return self._start + len(self._kept)

    def _drop(self, kept: int) -> None:
        dropped = len(self._kept) - kept
        del self._kept[:dropped]
        self._start += dropped

    def _advance(self) -> None:
        """Unpack a part."""
        stream = self._stream
        data = b""
        if stream.needs_input:
            data = self._pending or self._source.read(self._at, _FED)
            if not self._pending:
                self._at += len(data)
            self._pending = b""
            if not data:
                self._end(_CUT)
                return
        try:
            made = stream.decompress(data, _UNPACKED)
        except (zlib.error, OSError, EOFError, ValueError, lzma.LZMAError) as error:
            self._end(f"it cannot be unpacked: {error}")
            return
        self._budget.unpack(len(made))
        self._kept += made
        if stream.eof:
            self._follow(self._at - len(stream.unused_data) + self._trailer)

    def _follow(self, at: int) -> None:
        """Go on after the end of a stream: with another, or nowhere."""
        while (piece := self._source.read(at, _FED)) and not piece.strip(b"\0"):
            at += len(piece)
        if not piece:
            self._end()
        else:
            at += len(piece) - len(piece.lstrip(b"\0"))
            if not self._open(at):
                self._end(f"other data follows its end at byte {at}")
