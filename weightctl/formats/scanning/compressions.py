"""Compressions of a single stream, as `gzip` and `joblib` write them: one line of a table each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.formats.scanning.found import Scanned, unread
from weightctl.formats.scanning.unpacked import (
    Damaged,
    Decompressor,
    Unpacked,
    bzip2,
    lzma_alone,
    make_inflater,
    xz,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weightctl.formats.scanning.sources import Budget, ScanPlace, ScanSource

__all__ = ["COMPRESSIONS", "Compression", "is_packed", "unpack_stream"]

_UNPACK = "unpack the file, and scan the result"
_TRIED = 1 << 16
_LONGEST_NAME = 1 << 16
# The flags of gzip's header: RFC 1952, 2.3.1.
_CHECKED, _EXTRA, _NAMED, _COMMENTED = 2, 4, 8, 16
_ALONE = 13
_LARGEST_ALONE = 1 << 38
_ZFILE = 21


class Compression(NamedTuple):
    """A compression: how a stream begins, where its data starts, and what unpacks that.

    `trailer` is the length of what follows the data. `is_certain` says that nothing else begins so:
    of others it is tried. Without `open` it cannot be unpacked here.
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
                raise Damaged("its header is incomplete")
            start += end + 1
    return start + (2 if flags & _CHECKED else 0)


def _is_zlib(head: bytes) -> bool:
    """Whether bytes begin as RFC 1950 says, 2.2; a preset dictionary has to be known."""
    return (
        len(head) > 2
        and head[0] & 0x0F == 8
        and head[0] >> 4 <= 7
        and int.from_bytes(head[:2], "big") % 31 == 0
        and not head[1] & 0x20
    )


def _is_lzma(head: bytes) -> bool:
    """Whether bytes begin as liblzma's `alone_decoder.c` takes them, or as joblib does."""
    if len(head) < _ALONE or head[0] >= 9 * 5 * 5:
        return False
    dictionary = int.from_bytes(head[1:5], "little")
    length = int.from_bytes(head[5:_ALONE], "little")
    # 2^n, 2^n + 2^(n+1), or the largest.
    bits = dictionary.bit_count()
    is_power = bits == 1 or (bits == 2 and bool(dictionary & dictionary >> 1)) or bits in {0, 32}
    is_usual = is_power and (length < _LARGEST_ALONE or length == (1 << 64) - 1)
    return is_usual or head.startswith(b"\x5d\0")


def _zfile_data(source: ScanSource, at: int) -> int:
    # A header of joblib until 0.10: the length as a text, and perhaps a space.
    return at + _ZFILE + (source.read(at + _ZFILE, 1) == b" ") + 2


def _is_zstd(head: bytes) -> bool:
    """Whether bytes begin as zstd does, or with a frame that readers of zstd and lz4 skip."""
    is_skipped = len(head) > 3 and head[0] >> 4 == 5 and head[1:4] == b"\x2a\x4d\x18"
    return is_skipped or head.startswith(b"\x28\xb5\x2f\xfd")


def _zlib_data(_: ScanSource, at: int) -> int:
    return at + 2


COMPRESSIONS = (
    Compression("gzip", _magic(b"\x1f\x8b\x08"), make_inflater, _gzip_data, 8),
    Compression("bzip2", _magic(*(b"BZh%d" % n for n in range(1, 10))), bzip2),
    Compression("xz", _magic(b"\xfd7zXZ\0"), xz),
    Compression("zlib", _is_zlib, make_inflater, _zlib_data, 4, is_certain=False),
    Compression("LZMA", _is_lzma, lzma_alone, is_certain=False),
    Compression("joblib's ZFile", _magic(b"ZF0x"), make_inflater, _zfile_data, 4),
    Compression("zstd", _is_zstd),
    Compression("lz4", _magic(b"\x04\x22\x4d\x18", b"\x02\x21\x4c\x18")),
    Compression("lzip", _magic(b"LZIP\x01")),
    Compression("7-Zip", _magic(b"7z\xbc\xaf")),
    Compression("RAR", _magic(b"Rar!")),
)


def is_packed(compression: Compression, head: bytes, source: ScanSource, budget: Budget) -> bool:
    """Whether bytes look like the output of a compression."""
    if not compression.begins(head):
        return False
    return compression.is_certain or bool(_stream(compression, source, budget).read(0, _TRIED))


def _data(compression: Compression, source: ScanSource, at: int) -> int | None:
    """Return where the data of a stream starts; None if there is no stream at a place."""
    if not compression.begins(source.read(at, _ALONE + 3)):
        return None
    return compression.data(source, at) if compression.data else at


def _stream(compression: Compression, source: ScanSource, budget: Budget) -> Unpacked:
    def following(at: int) -> int | None:
        return _data(compression, source, at)

    assert compression.open is not None  # noqa: S101  # what cannot be opened is never unpacked
    return Unpacked(source, compression.open, following, budget, trailer=compression.trailer)


def unpack_stream(
    compression: Compression, place: ScanPlace, budget: Budget
) -> Iterator[Scanned | ScanPlace]:
    """Yield what a stream unpacks to, and what keeps it from being unpacked to its end."""
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
    if stream.problem:
        problem = f"it is compressed with {compression.name}, and {stream.problem}"
        yield unread(problem, place.member, place.source.base)
