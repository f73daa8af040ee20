"""Zip files assembled piece by piece, so that each piece can be wrong."""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

END = b"PK\5\6"


class Entry(NamedTuple):
    """A member as its header and the directory state it; None is the correct value.

    `local_name` is its name in the local header; `at` is the offset in the directory.
    """

    name: str | bytes
    content: bytes
    local_name: str | bytes | None = None
    at: int | None = None
    size: int | None = None
    packed: int | None = None
    method: int = 0
    flags: int = 0
    extra: bytes = b""
    is_there: bool = True


def raw(name: str | bytes) -> bytes:
    return name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")


def zip_of(
    *entries: Entry,
    count: int | None = None,
    size: int | None = None,
    place: int | None = None,
    disk: int = 0,
    comment: bytes = b"",
    comment_length: int | None = None,
    large: bytes = b"",
    between: bytes = b"",
    behind: bytes = b"",
) -> bytes:
    """Return a zip file; `large` are the 64-bit end records, and `between` precedes them."""
    body, directory = b"", b""
    for entry in entries:
        at = len(body) if entry.at is None else entry.at
        check = crc32(entry.content)
        nbytes = len(entry.content) if entry.size is None else entry.size
        packed = nbytes if entry.packed is None else entry.packed
        local = raw(entry.name if entry.local_name is None else entry.local_name)
        common = (entry.flags, entry.method, 0, 33, check, packed, nbytes)
        if entry.is_there:
            head = struct.pack("<4s5H3L2H", b"PK\3\4", 20, *common, len(local), 0)
            body += head + local + entry.content
        name = raw(entry.name)
        directory += struct.pack(
            "<4s6H3L5H2L", b"PK\1\2", 20, 20, *common, len(name), len(entry.extra), 0, 0, 0, 0, at
        )
        directory += name + entry.extra
    directory_size = len(directory) if size is None else size
    number = len(entries) if count is None else count
    start = len(body) if place is None else place
    length = len(comment) if comment_length is None else comment_length
    end = struct.pack("<4s4H2LH", END, disk, disk, number, number, directory_size, start, length)
    return body + directory + between + large + end + comment + behind


def large_end(count: int, size: int, start: int, at: int, *, disk: int = 0) -> bytes:
    """Return the 64-bit end record, which is at `at`, and its locator."""
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, disk, 0, count, count, size, start)
    return record + struct.pack("<4sLQL", b"PK\6\7", 0, at, 1)


def torch_zip(pickle: bytes, *members: Entry, **lies: object) -> bytes:
    """Return a zip file with torch's member names, and a storage of 4 floats."""
    first = Entry("m/data.pkl", pickle)
    return zip_of(first, *members, Entry("m/version", b"3\n"), **lies)  # type: ignore[arg-type]


def data(key: str = "0", content: bytes = bytes(16), **lies: object) -> Entry:
    """Return the member of a storage."""
    return Entry(f"m/data/{key}", content, **lies)  # type: ignore[arg-type]
