"""A zip archive as `torch.save` makes it: members that are stored as they are, and where they lie.

Source: APPNOTE.TXT 6.3.10; the numbers in comments are its sections.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from weightctl.formats.base import pad

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["ZipMember", "directory", "place_member"]

_LOCAL = Struct("<4s5H3I2H")  # 4.3.7
_DESCRIPTOR, _LARGE_DESCRIPTOR = Struct("<4s3I"), Struct("<4sI2Q")  # 4.3.9
_ENTRY = Struct("<4s6H3I5H2I")  # 4.3.12
_LARGE_END, _LOCATOR, _END = Struct("<4sQ2H2I4Q"), Struct("<4sIQI"), Struct("<4s4H2IH")  # 4.3.14-16
_EXTRA = Struct("<2sH")  # 4.5.1
_LARGE, _FILLING = b"\x01\x00", b"FB"
_TWO_SIZES = 20
# Its readers take the name of the folder from the first member.
_FOLDER = "archive/"
_SHORT, _INT = 0xFFFF, 0xFFFFFFFF
_IN_DESCRIPTOR = 1 << 3  # 4.4.4
_STORED, _TIME, _DATE = 0, 0, 1 << 5 | 1  # the first day there is, in 1980


class ZipMember(NamedTuple):
    """A file of an archive: its local header is at `start`, and its bytes are at `offset`.

    The CRC-32 is None if it is known only after the bytes.
    """

    name: str
    nbytes: int
    start: int
    offset: int
    crc: int | None

    @property
    def end(self) -> int:
        """Where the next may start."""
        return self.offset + self.nbytes + len(self.descriptor(0))

    @property
    def is_large(self) -> bool:
        """Whether the sizes take more than 32 bits."""
        return self.nbytes >= _INT

    @property
    def _flags(self) -> int:
        return _IN_DESCRIPTOR if self.crc is None else 0

    def header(self) -> bytes:
        """Return what stands before the bytes."""
        name = self.name.encode()
        # What the descriptor says, the header leaves out; but that it takes 64 bits is said here.
        size = 0 if self.crc is None else self.nbytes
        extra = _extra(_LARGE, Struct("<2Q").pack(size, size)) if self.is_large else b""
        filling = self.offset - self.start - _LOCAL.size - len(name) - len(extra)
        if filling:
            extra += _extra(_FILLING, bytes(filling - _EXTRA.size))
        return (
            _LOCAL.pack(
                b"PK\3\4", 45 if self.is_large else 20, self._flags, _STORED, _TIME, _DATE,
                self.crc or 0, *[_INT if self.is_large else size] * 2, len(name), len(extra),
            )
            + name
            + extra
        )  # fmt: skip

    def descriptor(self, crc: int) -> bytes:
        """Return what stands after the bytes."""
        if self.crc is not None:
            return b""
        kind = _LARGE_DESCRIPTOR if self.is_large else _DESCRIPTOR
        return kind.pack(b"PK\7\10", crc, self.nbytes, self.nbytes)

    def entry(self, crc: int) -> bytes:
        """Return the entry in the archive's directory."""
        name = self.name.encode()
        large = [n for n in (self.nbytes, self.nbytes, self.start) if n >= _INT]
        extra = _extra(_LARGE, Struct(f"<{len(large)}Q").pack(*large)) if large else b""
        size = min(self.nbytes, _INT)
        version = 45 if large else 20
        return (
            _ENTRY.pack(
                b"PK\1\2", version, version, self._flags, _STORED, _TIME, _DATE, crc, size, size,
                len(name), len(extra), 0, 0, 0, 0, min(self.start, _INT),
            )
            + name
            + extra
        )  # fmt: skip


def _extra(kind: bytes, content: bytes) -> bytes:
    return _EXTRA.pack(kind, len(content)) + content


def place_member(
    name: str, nbytes: int, position: int, alignment: int = 1, crc: int | None = None
) -> ZipMember:
    """Return a member that starts at a position or after it, so that its bytes are aligned.

    The local header grows for that, and where it cannot grow as far, it starts later.
    """
    name = _FOLDER + name
    least = _LOCAL.size + len(name.encode()) + (_TWO_SIZES if nbytes >= _INT else 0)
    gap, filling = 0, pad(position + least, alignment)
    if 0 < filling < _EXTRA.size:
        filling += alignment
    if filling > _SHORT - _TWO_SIZES:
        gap, filling = filling % alignment, 0
    start = position + gap
    return ZipMember(name, nbytes, start, start + least + filling, crc)


def directory(members: Iterable[ZipMember], crcs: Iterator[int], start: int) -> bytes:
    """Return what ends an archive: its directory, which is at `start`, and the end records.

    `crcs` are the CRC-32 of the members that have none.
    """
    entries = [m.entry(next(crcs) if m.crc is None else m.crc) for m in members]
    count, length = len(entries), sum(map(len, entries))
    if count >= _SHORT or length >= _INT or start >= _INT:
        rest = _LARGE_END.size - 12  # what follows the record's own length
        entries += [
            _LARGE_END.pack(b"PK\6\6", rest, 45, 45, 0, 0, count, count, length, start),
            _LOCATOR.pack(b"PK\6\7", 0, start + length, 1),
        ]
    count, length, start = min(count, _SHORT), min(length, _INT), min(start, _INT)
    entries.append(_END.pack(b"PK\5\6", 0, 0, count, count, length, start, 0))
    return b"".join(entries)
