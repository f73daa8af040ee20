"""Members of a zip file, which are read in place.

Source: PKWARE's APPNOTE 6.3. Compressed, encrypted and overlapping members are refused: torch does
not write them, and nothing is unpacked.
"""

from __future__ import annotations

from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.storage.base import FileRange, Reader

_DAMAGED = "the file is damaged or malicious"
_CUT = "check that the download is complete"
_END, _END_64, _LOCATOR_64 = b"PK\5\6", b"PK\6\6", b"PK\6\7"
_END_RECORD = Struct("<4s4H2LH")
_END_64_RECORD = Struct("<4sQ2H2L4Q")
_LOCATOR_RECORD = Struct("<4sLQL")
_LONGEST_COMMENT = 0xFFFF
_MAX_16, _MAX_32 = 0xFFFF, 0xFFFFFFFF
_LOCAL, _CENTRAL = b"PK\3\4", b"PK\1\2"
_CENTRAL_RECORD = Struct("<4s6H3L5H2L")
# The fields of the local header that are read: magic number, method, and the lengths of the name
# and the extra field.
_LOCAL_PARTS = Struct("<4s4xH16x2H")
_LOCAL_RECORD = Struct("<4s5H3L2H")
_EXTRA = Struct("<2H")
_ENCRYPTED = 1
_LONGEST_SHOWN = 100
_LONGEST_ENTRY = _CENTRAL_RECORD.size + 3 * 0xFFFF
_WINDOW = 1 << 20


def directory_of(file: Reader) -> tuple[int, int, int]:
    """Return the number of members, and the size and offset of the central directory.

    Raises `FormatError` if programs that search for it in other ways would find another one.
    """
    at = _end_record(file)
    _, disk, first_disk, _, count, size, offset, _ = _END_RECORD.unpack(
        file.read(at, _END_RECORD.size)
    )
    locator = at - _LOCATOR_RECORD.size
    found = file.read(locator, _LOCATOR_RECORD.size) if locator >= 0 else b""
    if found.startswith(_LOCATOR_64):
        at = _LOCATOR_RECORD.unpack(found)[2]
        is_there = at + _END_64_RECORD.size == locator
        record = file.read(at, _END_64_RECORD.size) if is_there else b""
        if not record.startswith(_END_64):
            raise _refuse(file, locator, "the zip64 end-of-central-directory record is missing")
        wide = _END_64_RECORD.unpack(record)
        disk, first_disk = wide[4:6]
        small, large = (count, size, offset), wide[7:10]
        limits = (_MAX_16, _MAX_32, _MAX_32)
        if any(n not in {m, limit} for n, m, limit in zip(small, large, limits, strict=True)):
            raise _refuse(
                file,
                at,
                "the two end-of-central-directory records of the zip file contradict each other",
            )
        count, size, offset = large
    if disk or first_disk:
        raise _refuse(
            file, at, "the file is one part of a multi-part zip file", "join the parts first"
        )
    past = offset + size - at
    if past > 0:
        raise _refuse(
            file,
            at,
            f"the zip central directory would end {past} bytes after the start of its end record",
            _CUT,
        )
    if past:
        raise _refuse(
            file, at, f"the zip central directory ends {-past} bytes before its end record"
        )
    return count, size, offset


def _end_record(file: Reader) -> int:
    """Return the offset of the end record; its comment ends at the end of the file."""
    tail = file.read_end(_END_RECORD.size + _LONGEST_COMMENT)
    start = file.size - len(tail)
    found = place = tail.rfind(_END)
    if place < 0 or place + _END_RECORD.size > len(tail):
        raise _refuse(
            file, None, "the end-of-central-directory record of the zip file is missing", _CUT
        )
    behind = _behind(tail, place)
    if behind < 0:
        raise _refuse(
            file, start + place, "the comment at the end of the zip file is truncated", _CUT
        )
    if behind:
        raise _refuse(
            file, start + place, f"{behind} bytes after the end of the zip file are not part of it"
        )
    # Some programs use the first record that is possible, others the last.
    while (found := tail.rfind(_END, 0, found)) >= 0:
        if found + _END_RECORD.size <= place and not _behind(tail, found):
            raise _refuse(
                file, start + found, "the zip file has two end-of-central-directory records"
            )
    return start + place


def _behind(tail: bytes, place: int) -> int:
    """Return how many bytes follow a record and its comment; negative if bytes are missing."""
    *_, comment = _END_RECORD.unpack_from(tail, place)
    return len(tail) - place - _END_RECORD.size - int(comment)


def _refuse(file: Reader, offset: int | None, message: str, hint: str = _DAMAGED) -> FormatError:
    return FormatError(file.path, offset, message, hint=hint)


def is_zip(file: Reader) -> bool:
    """Whether a file begins like a zip file."""
    return file.read(0, 4) == _LOCAL


class DirectoryMember(NamedTuple):
    """An entry of the central directory: the offset of the local header, sizes and method.

    `nbytes` is the size of the content, and `packed` its size in the file.
    """

    name: str
    header: int
    nbytes: int
    method: int
    flags: int
    packed: int


class Archive:
    """The directory of a zip file; raises `FormatError` if it is invalid.

    `members` are by name, in the order of the directory.
    """

    def __init__(self, file: Reader) -> None:
        self._file = file
        count, size, self._directory = directory_of(file)
        self.members: Mapping[str, DirectoryMember] = self._read(count, size)
        self._nexts = self._spans()

    def _refuse(self, offset: int, message: str, hint: str = _DAMAGED) -> FormatError:
        return FormatError(self._file.path, offset, message, hint=hint)

    def _read(self, count: int, size: int) -> dict[str, DirectoryMember]:
        if count * _CENTRAL_RECORD.size > size:
            raise self._refuse(
                self._directory,
                f"the directory of the zip file has {size} bytes, too few for {count} members",
            )
        members: dict[str, DirectoryMember] = {}
        taken: set[str] = set()
        at, end = self._directory, self._directory + size
        size_of_one = _CENTRAL_RECORD.size
        base, window = at, b""
        for _ in range(count):
            base, window = self._around(at, end, base, window)
            place = at - base
            record = _CENTRAL_RECORD.unpack_from(window, place) if at + size_of_one <= end else ()
            if not record or record[0] != _CENTRAL:
                raise self._refuse(
                    at,
                    "the zip central directory has fewer entries than its end record states "
                    f"({count})",
                )
            flags, method, packed, nbytes = record[3], record[4], record[8], record[9]
            name_length, extra_length, comment_length = record[10:13]
            start = place + size_of_one
            after = start + name_length + extra_length
            following = base + after + comment_length
            if following > end:
                raise self._refuse(at, "an entry of the zip central directory is truncated")
            name = str(window[start : start + name_length], "utf-8", "surrogateescape")
            offset = record[16]
            if _MAX_32 in {nbytes, packed, offset}:
                extra = window[start + name_length : after]
                wide = _wide(extra, nbytes, packed, offset)
                if wide is None:
                    raise self._refuse(
                        at,
                        "the zip central directory has an ambiguous size or offset for "
                        f"{_shorten(name)}",
                    )
                nbytes, packed, offset = wide
            if self._key(name) in taken:
                raise self._refuse(at, f"the zip file has two members named {_shorten(name)}")
            taken.add(self._key(name))
            if offset + _LOCAL_RECORD.size > self._directory or packed > self._directory - offset:
                raise self._refuse(
                    at, f"the zip central directory has an invalid offset for {_shorten(name)}"
                )
            members[name] = DirectoryMember(name, offset, nbytes, method, flags, packed)
            at = following
        if at != end:
            raise self._refuse(
                at,
                f"the zip central directory has more entries than its end record states ({count})",
            )
        return members

    def _around(self, at: int, end: int, base: int, window: bytes) -> tuple[int, bytes]:
        """Return the offset and the bytes of a window of the directory that contains an entry."""
        if at + _LONGEST_ENTRY <= base + len(window) or base + len(window) >= end:
            return base, window
        return at, self._file.read(at, min(_WINDOW, end - at))

    @staticmethod
    def _key(name: str) -> str:
        """Return the key that identifies a name: torch ignores case, except in `/code/`."""
        return name if "/code/" in name else name.lower()

    def _spans(self) -> dict[int, int]:
        """Return for each header's offset where its member must end: at the next header."""
        starts = sorted(member.header for member in self.members.values())
        for before, after in pairwise(starts):
            if before == after:
                raise self._refuse(before, "two members of the zip file overlap")
        return dict(pairwise([*starts, self._directory]))

    def place(self, member: DirectoryMember) -> int:
        """Return the offset of a member's bytes; raises `FormatError` if they cannot be used."""
        if member.flags & _ENCRYPTED:
            raise self._refuse(
                member.header,
                f"the zip member {_shorten(member.name)} is encrypted",
                "decrypt the file first",
            )
        if member.method != 0:
            raise self._refuse(
                member.header,
                f"the zip member {_shorten(member.name)} is compressed, but torch stores members "
                "uncompressed",
                "unzip the file, then pack it again with `zip -0 -r`",
            )
        misplaced = self._refuse(
            member.header,
            f"the zip member {_shorten(member.name)} is not at the offset that the central "
            "directory states",
        )
        name = member.name.encode("utf-8", "surrogateescape")
        start = member.header + _LOCAL_RECORD.size + len(name)
        if start > self._directory or member.packed != member.nbytes:
            raise misplaced
        head = self._file.read(member.header, _LOCAL_RECORD.size + len(name))
        magic, method, name_length, extra_length = _LOCAL_PARTS.unpack_from(head)
        if magic != _LOCAL or method != member.method:
            raise misplaced
        if name_length != len(name) or head[_LOCAL_RECORD.size :] != name:
            raise self._refuse(
                member.header, f"the local header of {_shorten(member.name)} has a different name"
            )
        start += int(extra_length)
        if start + member.nbytes > self._nexts[member.header]:
            raise self._refuse(
                member.header, f"the zip member {_shorten(member.name)} overlaps the next one"
            )
        return start

    def content(self, name: str) -> FileRange:
        """Return the range of a member's bytes without reading them; raises as `place` does."""
        member = self.members[name]
        start = self.place(member)
        return self._file.range(start, start + member.nbytes)


def _shorten(name: str) -> str:
    return repr(name if len(name) <= _LONGEST_SHOWN else name[:_LONGEST_SHOWN] + "...")


def _wide(extra: bytes, *numbers: int) -> list[int] | None:
    """Return the numbers, with those that are 0xFFFFFFFF read from the zip64 extra field.

    Returns None if there is not exactly one such field with all of them, because readers would use
    different values.
    """
    at = 0
    fields: list[bytes] = []
    while at + _EXTRA.size <= len(extra):
        kind, length = _EXTRA.unpack_from(extra, at)
        at += _EXTRA.size + length
        if kind == 1:
            fields.append(extra[at - length : at])
    missing = sum(number == _MAX_32 for number in numbers)
    if at != len(extra) or len(fields) != 1 or len(fields[0]) < 8 * missing:
        return None
    wide = iter(Struct(f"<{missing}Q").unpack_from(fields[0]))
    return [next(wide) if number == _MAX_32 else number for number in numbers]
