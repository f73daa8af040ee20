"""Compressed streams, as `gzip` and `joblib` write them: each has a line of a table.

Data is decompressed when it is read, and only a part of it is kept in memory.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from weightctl.formats.scanning.found import Scanned, unread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weightctl.formats.scanning.sources import Budget, ScanPlace, ScanSource


def _load(name: str) -> Any:
    """Return a module that Python can be built without; None if it was."""
    try:
        return import_module(name)
    except ImportError:
        return None


_BZ2, _LZMA = _load("bz2"), _load("lzma")
_ERRORS = (zlib.error, OSError, EOFError, ValueError, *([_LZMA.LZMAError] if _LZMA else []))
_FED = 1 << 12
_UNPACKED = 1 << 18
_KEPT = 1 << 24
_LZMA_MEMORY = 1 << 28
_CUT = "the compressed data is incomplete"
_UNPACK = "unpack the file, and scan the result"
_TRIED = 1 << 16
_LONGEST_NAME = 1 << 16
# Flags in the header of gzip: RFC 1952, 2.3.1.
_CHECKED, _EXTRA, _NAMED, _COMMENTED = 2, 4, 8, 16
_ALONE = 13
_LARGEST_ALONE = 1 << 38
_ZFILE = 21


class _Damaged(ValueError):  # noqa: N818  # raised for damaged data
    """Compressed data is invalid."""


class Decompressor(Protocol):
    """A decompressor with the interface of the classes in `bz2` and `lzma`."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""
        ...

    @property
    def needs_input(self) -> bool:
        """Whether more input is needed before there is more output."""
        ...

    @property
    def unused_data(self) -> bytes:
        """The input after the end of the stream."""
        ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """Return decompressed data, at most `max_length` bytes."""
        ...


class _Inflated:
    """A decompressor of DEFLATE data without header and checksum.

    Checksums are not verified, because programs load a pickle before they reach its checksum.
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


class _Missing:
    """What decompresses nothing: Python was built without the module for a compression."""

    eof, needs_input, unused_data = False, True, b""

    def __init__(self, module: str) -> None:
        self._module = module

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        del data, max_length
        raise _Damaged(f"this Python was built without the module `{self._module}`")


def make_inflater() -> Decompressor:
    return _Inflated()


def bzip2() -> Decompressor:
    return _Missing("bz2") if _BZ2 is None else _BZ2.BZ2Decompressor()


def _xz() -> Decompressor:
    return _make_lzma("FORMAT_XZ")


def lzma_alone() -> Decompressor:
    """Return a decompressor of LZMA with its old header."""
    return _make_lzma("FORMAT_ALONE")


def _make_lzma(form: str) -> Decompressor:
    if _LZMA is None:
        return _Missing("lzma")
    made: Decompressor = _LZMA.LZMADecompressor(getattr(_LZMA, form), _LZMA_MEMORY)
    return made


class Unpacked:
    """The decompressed data of a source; `problem` says why it is incomplete, if it is.

    A stream can follow another: `following` returns the offset of the data of the stream at an
    offset, or None if there is no stream. `head` is inserted before the data of each stream.
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
        """Begin decompressing the stream at an offset; return whether there is a stream."""
        try:
            start = self._following(at)
        except _Damaged as error:
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
        """Decompress up to the requested bytes; start again for bytes that were dropped."""
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
        """Decompress all data, and return its size."""
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
        except _ERRORS as error:
            self._end(f"it cannot be unpacked: {error}")
            return
        self._budget.unpack(len(made))
        self._kept += made
        if stream.eof:
            self._follow(self._at - len(stream.unused_data) + self._trailer)

    def _follow(self, at: int) -> None:
        """Continue after the end of a stream, with the next stream if there is one."""
        while (piece := self._source.read(at, _FED)) and not piece.strip(b"\0"):
            at += len(piece)
        if not piece:
            self._end()
        else:
            at += len(piece) - len(piece.lstrip(b"\0"))
            if not self._open(at):
                self._end(f"other data follows its end at byte {at}")


class _Compression(NamedTuple):
    """A compression: how a stream begins, where its data starts, and how it is decompressed.

    `trailer` is the length of the bytes after the data. If `is_certain` is false, other data can
    begin in the same way, so decompression is tried. If `open` is None, decompression is not
    supported.
    """

    name: str
    begins: Callable[[bytes], bool]
    open: Callable[[], Decompressor] | None = None
    data: Callable[[ScanSource, int], int] | None = None
    trailer: int = 0
    is_certain: bool = True


def _magic(*magics: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(magics)


def _gzip_data(source: ScanSource, at: int) -> int:
    head = source.read(at, 12)
    flags = head[3] if len(head) > 3 else 0
    start = at + 10
    if flags & _EXTRA:
        start += 2 + int.from_bytes(source.read(start, 2), "little")
    for flag in (_NAMED, _COMMENTED):
        if flags & flag:
            end = source.read(start, _LONGEST_NAME).find(b"\0")
            if end < 0:
                raise _Damaged("its header is incomplete")
            start += end + 1
    return start + (2 if flags & _CHECKED else 0)


def _is_zlib(head: bytes) -> bool:
    """Whether data begins as RFC 1950, 2.2, requires, and needs no preset dictionary."""
    return (
        len(head) > 2
        and head[0] & 0x0F == 8
        and head[0] >> 4 <= 7
        and int.from_bytes(head[:2], "big") % 31 == 0
        and not head[1] & 0x20
    )


def _is_lzma(head: bytes) -> bool:
    """Whether data begins as liblzma's `alone_decoder.c` requires, or as joblib writes it."""
    if len(head) < _ALONE or head[0] >= 9 * 5 * 5:
        return False
    dictionary = int.from_bytes(head[1:5], "little")
    length = int.from_bytes(head[5:_ALONE], "little")
    # 2^n, 2^n + 2^(n+1), 0, or the largest value.
    bits = dictionary.bit_count()
    is_power = bits == 1 or (bits == 2 and bool(dictionary & dictionary >> 1)) or bits in {0, 32}
    is_usual = is_power and (length < _LARGEST_ALONE or length == (1 << 64) - 1)
    return is_usual or head.startswith(b"\x5d\0")


def _zfile_data(source: ScanSource, at: int) -> int:
    # The header of joblib before 0.10: the length as text, and optionally a space.
    return at + _ZFILE + (source.read(at + _ZFILE, 1) == b" ") + 2


def _is_zstd(head: bytes) -> bool:
    """Whether data begins like zstd, or with a frame that readers of zstd and lz4 skip."""
    is_skipped = len(head) > 3 and head[0] >> 4 == 5 and head[1:4] == b"\x2a\x4d\x18"
    return is_skipped or head.startswith(b"\x28\xb5\x2f\xfd")


def _zlib_data(_: ScanSource, at: int) -> int:
    return at + 2


COMPRESSIONS = (
    _Compression("gzip", _magic(b"\x1f\x8b\x08"), make_inflater, _gzip_data, 8),
    _Compression("bzip2", _magic(*(b"BZh%d" % n for n in range(1, 10))), bzip2),
    _Compression("xz", _magic(b"\xfd7zXZ\0"), _xz),
    _Compression("zlib", _is_zlib, make_inflater, _zlib_data, 4, is_certain=False),
    _Compression("LZMA", _is_lzma, lzma_alone, is_certain=False),
    _Compression("joblib's ZFile", _magic(b"ZF0x"), make_inflater, _zfile_data, 4),
    _Compression("zstd", _is_zstd),
    _Compression("lz4", _magic(b"\x04\x22\x4d\x18", b"\x02\x21\x4c\x18")),
    _Compression("lzip", _magic(b"LZIP\x01")),
    _Compression("7-Zip", _magic(b"7z\xbc\xaf")),
    _Compression("RAR", _magic(b"Rar!")),
)


def is_packed(compression: _Compression, head: bytes, source: ScanSource, budget: Budget) -> bool:
    """Whether data looks like the output of a compression."""
    if not compression.begins(head):
        return False
    if compression.open is not None and isinstance(compression.open(), _Missing):
        return True
    return compression.is_certain or bool(_stream(compression, source, budget).read(0, _TRIED))


def _data(compression: _Compression, source: ScanSource, at: int) -> int | None:
    """Return the offset of a stream's data; None if there is no stream at `at`."""
    if not compression.begins(source.read(at, _ALONE + 3)):
        return None
    return compression.data(source, at) if compression.data else at


def _stream(compression: _Compression, source: ScanSource, budget: Budget) -> Unpacked:
    def following(at: int) -> int | None:
        return _data(compression, source, at)

    assert compression.open is not None  # noqa: S101  # guaranteed by the callers
    return Unpacked(source, compression.open, following, budget, trailer=compression.trailer)


def unpack_stream(
    compression: _Compression, place: ScanPlace, budget: Budget
) -> Iterator[Scanned | ScanPlace]:
    """Yield the decompressed data of a stream, and the problem that makes it incomplete."""
    if compression.open is None:
        problem = f"it is compressed with {compression.name}: {_UNPACK}"
        yield unread(problem, place.member, place.source.base)
        return
    stream = _stream(compression, place.source, budget)
    name = place.name
    for suffix in (".gz", ".bz2", ".xz", ".lzma", ".z"):
        name = name.removesuffix(suffix)
    yield place.within(stream, f"({compression.name})", name)
    stream.size()
    # The elements of a tensor can begin as compressed data does, and no program decompresses them.
    if stream.problem and (compression.is_certain or not place.is_storage):
        problem = f"it is compressed with {compression.name}, and {stream.problem}"
        yield unread(problem, place.member, place.source.base)
