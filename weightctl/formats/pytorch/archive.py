"""The members of a zip file where they lie in it, as far as they can be used in place.

Source: PKWARE's APPNOTE 6.3. Members that are compressed, encrypted or overlapping are refused:
torch writes none such, and nothing is ever unpacked.
"""

from __future__ import annotations

from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats.pytorch.zip_end import DAMAGED, directory_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.mapping import MappedFile

__all__ = ["Archive", "Member", "is_zip"]

_LOCAL, _CENTRAL = b"PK\3\4", b"PK\1\2"
_CENTRAL_RECORD = Struct("<4s6H3L5H2L")
# What of it is looked at: magic number, method, and the lengths of name and extra field.
_LOCAL_PARTS = Struct("<4s4xH16x2H")
_LOCAL_RECORD = Struct("<4s5H3L2H")
_EXTRA = Struct("<2H")
_MAX_32 = 0xFFFFFFFF
_ENCRYPTED = 1
_LONGEST_SHOWN = 100


def is_zip(file: MappedFile) -> bool:
    """Whether a file starts as a zip archive does."""
    return bytes(file.whole[:4]) == _LOCAL


class Member(NamedTuple):
    """What the directory says of a member: where its header is, its size, how it is kept."""

    name: str
    header: int
    nbytes: int
    method: int
    flags: int
    packed: int


class Archive:
    """The directory of a zip file; `FormatError` where it is not sound.

    `members` are by name, in the order of the directory.
    """

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        count, size, self._directory = directory_of(file)
        self.members: Mapping[str, Member] = self._read(count, size)
        self._nexts = self._spans()

    def _refuse(self, offset: int, message: str, hint: str = DAMAGED) -> FormatError:
        return FormatError(self._file.path, offset, message, hint=hint)

    def _read(self, count: int, size: int) -> dict[str, Member]:
        whole = self._file.whole
        if count * _CENTRAL_RECORD.size > size:
            raise self._refuse(
                self._directory, f"the zip's directory of {size} bytes has no {count} members"
            )
        members: dict[str, Member] = {}
        taken: set[str] = set()
        at, end = self._directory, self._directory + size
        size_of_one = _CENTRAL_RECORD.size
        for _ in range(count):
            record = _CENTRAL_RECORD.unpack_from(whole, at) if at + size_of_one <= end else ()
            if not record or record[0] != _CENTRAL:
                raise self._refuse(at, "an entry of the zip's directory is not there")
            flags, method, packed, nbytes = record[3], record[4], record[8], record[9]
            name_length, extra_length, comment_length = record[10:13]
            start = at + _CENTRAL_RECORD.size
            after = start + name_length + extra_length
            if after + comment_length > end:
                raise self._refuse(at, "an entry of the zip's directory is cut off")
            name = str(whole[start : start + name_length], "utf-8", "surrogateescape")
            offset = record[16]
            if _MAX_32 in {nbytes, packed, offset}:
                extra = bytes(whole[start + name_length : after])
                wide = _wide(extra, nbytes, packed, offset)
                if wide is None:
                    raise self._refuse(at, f"the zip has no one size or place of {_shown(name)}")
                nbytes, packed, offset = wide
            if self._key(name) in taken:
                raise self._refuse(at, f"the zip has two members {_shown(name)}")
            taken.add(self._key(name))
            if offset + _LOCAL_RECORD.size > self._directory or packed > self._directory - offset:
                raise self._refuse(at, f"the zip says that {_shown(name)} is where it cannot be")
            members[name] = Member(name, offset, nbytes, method, flags, packed)
            at = after + comment_length
        if at != end:
            raise self._refuse(at, f"the zip's directory has more than its {count} members")
        return members

    @staticmethod
    def _key(name: str) -> str:
        """Return what a name is found by: torch does not tell large letters from small ones."""
        return name if "/code/" in name else name.lower()

    def _spans(self) -> dict[int, int]:
        """Return where each header's member must end at the latest: at the next one."""
        starts = sorted(member.header for member in self.members.values())
        for before, after in pairwise(starts):
            if before == after:
                raise self._refuse(before, "two members of the zip are in one place")
        return dict(zip(starts, [*starts[1:], self._directory], strict=True))

    def place(self, member: Member) -> int:
        """Return where a member's bytes start; `FormatError` where they cannot be used in place."""
        if member.flags & _ENCRYPTED:
            raise self._refuse(
                member.header, f"{_shown(member.name)} is encrypted", "decrypt it first"
            )
        if member.method != 0:
            raise self._refuse(
                member.header, f"{_shown(member.name)} is compressed, which torch never does",
                "unzip it, and zip it again with `zip -0 -r`",
            )  # fmt: skip
        name = member.name.encode("utf-8", "surrogateescape")
        start = member.header + _LOCAL_RECORD.size + len(name)
        if start > self._directory or member.packed != member.nbytes:
            raise self._refuse(member.header, f"{_shown(member.name)} is not where the zip says")
        # Read, not mapped: each is on a page of its own, and a fault costs more.
        head = bytearray(_LOCAL_RECORD.size + len(name))
        self._file.read_into(member.header, memoryview(head))
        magic, method, name_length, extra_length = _LOCAL_PARTS.unpack_from(head)
        if magic != _LOCAL or method != member.method:
            raise self._refuse(member.header, f"{_shown(member.name)} is not where the zip says")
        if name_length != len(name) or bytes(head[_LOCAL_RECORD.size :]) != name:
            raise self._refuse(
                member.header, f"the zip has another name there than {_shown(member.name)}"
            )
        start += int(extra_length)
        if start + member.nbytes > self._nexts[member.header]:
            raise self._refuse(member.header, f"{_shown(member.name)} overlaps what follows it")
        return start

    def content(self, name: str) -> memoryview:
        """Return the bytes of a member."""
        member = self.members[name]
        start = self.place(member)
        return self._file.whole[start : start + member.nbytes]


def _shown(name: str) -> str:
    return repr(name if len(name) <= _LONGEST_SHOWN else name[:_LONGEST_SHOWN] + "...")


def _wide(extra: bytes, *numbers: int) -> list[int] | None:
    """Return numbers of which those that did not fit stand in the extra field.

    None where there is not one field for them that has all of them: readers would take others.
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
