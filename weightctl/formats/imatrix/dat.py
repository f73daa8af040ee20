"""Importance matrices in llama.cpp's format before GGUF, used until 2025 (`.dat`).

All numbers have 32 bits and are little-endian. The file begins with the number of entries. Each
entry has the length of its name, the name, the number of evaluations, the number of values, and the
values, which are sums over the evaluations. Optionally, the number of chunks follows, and then the
length and the name of the text.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats.base import is_text
from weightctl.formats.imatrix.entry import ImportanceEntry, Recorded
from weightctl.formats.truncation import rest_of

if TYPE_CHECKING:
    from weightctl.codecs.base import F32
    from weightctl.storage.base import Reader

_INTEGER = struct.Struct("<i")
# The size of the smallest entry: three integers, a name of one byte, and one value.
_SMALLEST = 17
# The maximum length of a name. Other files usually have a greater integer in this place.
_LONGEST = 1024
# The maximum length of the name of the text, which is a path.
_LONGEST_TEXT = 1 << 16
# The maximum number of entries, which is more matrices than any model has.
_MOST = 1 << 16
_DAMAGED = "the file is damaged; create it again"


def sniff(file: Reader) -> bool:
    """Whether a file begins like this format: with a positive count and a printable name."""
    if file.size < 2 * _INTEGER.size + 1:
        return False
    count, length = struct.unpack("<ii", file.read(0, 8))
    if count < 1 or not 0 < length <= min(_LONGEST, file.size - 8):
        return False
    name = str(file.read(8, length), "utf-8", "replace")
    return name.isprintable() and "\ufffd" not in name


def read(file: Reader) -> Recorded:
    """Read the names and sizes of all entries; the values are read on demand.

    Raises `FormatError` with the byte offset if the file is invalid.
    """
    cursor = _Cursor(file)
    count = cursor.integer("the number of entries")
    if count * _SMALLEST > file.size:
        raise FormatError(
            file.path, 0, f"the file states {count} entries, which do not fit into its "
                f"{file.size} bytes",
            hint=rest_of(file.path),
        )  # fmt: skip
    if count > _MOST:
        raise FormatError(
            file.path,
            0,
            f"the file states {count} entries, more than the limit of {_MOST}",
            hint=_DAMAGED,
        )
    entries: dict[str, ImportanceEntry] = {}
    for _ in range(count):
        at = cursor.offset
        entry = _entry(cursor)
        if entry.name in entries:
            raise FormatError(
                file.path, at, f"the entry `{entry.name}` appears twice", hint=_DAMAGED
            )
        entries[entry.name] = entry
    found = tuple(entries.values())
    if cursor.offset == file.size:
        return Recorded(found, counts_chunks=True)
    chunks = max(cursor.integer("the number of chunks"), 0)
    if cursor.offset == file.size:
        return Recorded(found, chunks=chunks, counts_chunks=True)
    raw = cursor.text("the name of the text", least=0, most=_LONGEST_TEXT)
    # The name is a path, which can contain any bytes.
    name = str(raw, "utf-8", "surrogateescape").partition("\0")[0]
    return Recorded(found, name, chunks, (name,) if name else (), counts_chunks=True)


def _entry(cursor: _Cursor) -> ImportanceEntry:
    at, file = cursor.offset, cursor.file
    name = str(cursor.text("a name", most=_LONGEST), "utf-8", "surrogateescape")
    if not is_text(name):
        raise FormatError(file.path, at, f"the name {name!r} is not UTF-8", hint=_DAMAGED)
    evaluations = cursor.integer(f"the number of evaluations of `{name}`")
    count = cursor.length(f"the values of `{name}`")
    start = cursor.skip(4 * count, f"the values of `{name}`")
    # Without evaluations, llama.cpp uses the sums as means.
    divisor = _Divisor(evaluations if evaluations > 0 else 1)
    return ImportanceEntry(name, _Sums(file, start, count), divisor, file.path, start)


class _Sums(NamedTuple):
    """Values at an offset of a file."""

    file: Reader
    offset: int
    size: int

    def read(self, start: int, stop: int) -> F32:
        import numpy as np  # only quantization needs this

        numbers = np.empty(stop - start, "<f4")
        self.file.read_into(self.offset + 4 * start, numbers.view(np.uint8).data)
        return numbers


class _Divisor(NamedTuple):
    """One count for all matrices."""

    number: int

    @property
    def size(self) -> int:
        return 1

    def read(self, start: int, stop: int) -> F32:
        import numpy as np

        return np.full(stop - start, self.number, np.float32)


class _Cursor:
    """A position in the file; each method reads a value there and moves past it."""

    def __init__(self, file: Reader) -> None:
        self.file = file
        self.offset = 0

    def integer(self, what: str) -> int:
        at = self.skip(_INTEGER.size, what)
        return int(_INTEGER.unpack(self.file.read(at, _INTEGER.size))[0])

    def length(self, what: str, least: int = 1) -> int:
        at = self.offset
        length = self.integer(f"the length of {what}")
        if length < least:
            raise FormatError(
                self.file.path,
                at,
                f"the length of {what} is {length}, which is not valid",
                hint=_DAMAGED,
            )
        return length

    def text(self, what: str, *, least: int = 1, most: int) -> bytes:
        length = self.length(what, least)
        at = self.skip(length, what)
        if length > most:
            raise FormatError(
                self.file.path,
                at,
                f"{what} has a stated length of {length} bytes, which is too long",
                hint=_DAMAGED,
            )
        return self.file.read(at, length)

    def skip(self, nbytes: int, what: str) -> int:
        """Move past this many bytes, and return the offset where they begin."""
        left = self.file.size - self.offset
        if nbytes > left:
            raise FormatError(
                self.file.path,
                self.offset,
                f"{what} needs {nbytes} bytes, but the file ends after {left}",
                hint=rest_of(self.file.path),
            )
        start, self.offset = self.offset, self.offset + nbytes
        return start
