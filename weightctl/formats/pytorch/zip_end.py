"""The end of a zip file: the records that say where its directory is.

Source: PKWARE's APPNOTE 6.3, 4.3.14 to 4.3.16.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from weightctl.errors import FormatError

if TYPE_CHECKING:
    from weightctl.storage.base import Reader

__all__ = ["DAMAGED", "directory_of"]

DAMAGED = "the file is damaged or malicious"
_CUT = "check that the download is complete"
_END, _END_64, _LOCATOR_64 = b"PK\5\6", b"PK\6\6", b"PK\6\7"
_END_RECORD = Struct("<4s4H2LH")
_END_64_RECORD = Struct("<4sQ2H2L4Q")
_LOCATOR_RECORD = Struct("<4sLQL")
_LONGEST_COMMENT = 0xFFFF
_MAX_16, _MAX_32 = 0xFFFF, 0xFFFFFFFF


def directory_of(file: Reader) -> tuple[int, int, int]:
    """Return the number of members, and the size and place of the directory.

    Programs that look for it in other ways must find the same: what one of them would see and
    another would not is refused.
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
    """Return where the last record is; its comment ends where the file ends."""
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
    # Some programs take the first that could be it, and others the last.
    while (found := tail.rfind(_END, 0, found)) >= 0:
        if found + _END_RECORD.size <= place and not _behind(tail, found):
            raise _refuse(
                file, start + found, "the zip file has two end-of-central-directory records"
            )
    return start + place


def _behind(tail: bytes, place: int) -> int:
    """Return how many bytes are behind a record and its comment; below 0 for too few."""
    *_, comment = _END_RECORD.unpack_from(tail, place)
    return len(tail) - place - _END_RECORD.size - int(comment)


def _refuse(file: Reader, offset: int | None, message: str, hint: str = DAMAGED) -> FormatError:
    return FormatError(file.path, offset, message, hint=hint)
