"""Metadata values of GGUF: skipping, decoding on demand, and writing."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, overload

from weightctl.errors import ConversionError, FormatError
from weightctl.text.untyped import is_sequence
from weightctl.weights.metadata import TEXT, MetadataValue, element_type

if TYPE_CHECKING:
    from weightctl.storage.base import Reader

# The index of each type is its number on disk (GGUF specification, gguf_metadata_value_type).
TYPES = (
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64",
)  # fmt: skip
_CODES = {
    "u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f",
    "bool": "B", "u64": "Q", "i64": "q", "f64": "d",
}  # fmt: skip
_DEPTH = 16
_FIRST_READ, _LARGEST_READ = 1 << 14, 1 << 18
# The strings of a vocabulary are read in one step as far as this; most are smaller.
_LARGEST_ARRAY_READ = 4 << 20
_FAULTY = "the file is damaged or a faulty tool wrote it"


@cache
def _structs(order: str) -> dict[str, struct.Struct]:
    return {kind: struct.Struct(order + code) for kind, code in _CODES.items()}


class PackedArray(Sequence[Any]):
    """An array of a GGUF file that is decoded on demand."""

    def __init__(self, start: Cursor, end: int, kind: str, count: int) -> None:
        self._file = start.file
        self._span = (start.offset, end)
        self._kind = kind
        self._count = count
        self._version = start.version
        self._order = start.order
        self._list: list[Any] | None = None

    @property
    def raw(self) -> bytes | None:
        """The elements as a GGUF v3 file stores them; None if this file stores them differently."""
        if self._order == ">" or (self._version == 1 and self._kind not in _CODES):
            return None
        start, end = self._span
        return self._file.read(start, end - start)

    def _decode(self) -> list[Any]:
        if self._list is None:
            self._list = self._first(self._count)
        return self._list

    def _first(self, count: int) -> list[Any]:
        cursor = Cursor(self._file, self._version, self._order, self._span[0])
        return cursor.elements(self._kind, count)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if self._list is None and isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            if 0 <= start <= stop < self._count and step == 1:
                # A listing shows only the first elements of a vocabulary.
                return self._first(stop)[start:]
        return self._decode()[index]

    def __eq__(self, other: object) -> bool:
        return self._decode() == list(other) if is_sequence(other) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # compares by content, so it is not hashable

    def __repr__(self) -> str:
        return f"<array of {self._count} {self._kind}>"


class Cursor:
    """A position in a GGUF header; each method reads a value there and moves past it.

    The header is read in windows; each is larger than the one before, up to a limit. Raises
    `FormatError` with the byte offset if the file is invalid.
    """

    def __init__(self, file: Reader, version: int, order: str, offset: int) -> None:
        self.file = file
        self.offset = offset
        self.version = version
        self.order = order
        # A window of the file, its offset, and how much is read next.
        self._window = b""
        self._base = offset
        self._reads = _FIRST_READ
        # Counts have 32 bits in version 1, and 64 in later versions.
        self._length = struct.Struct(order + ("I" if version == 1 else "Q"))
        self._structs = _structs(order)

    def fail(self, message: str, hint: str = "check that the download is complete") -> FormatError:
        """Return an error with the current offset."""
        return FormatError(self.file.path, self.offset, message, hint=hint)

    def number(self, kind: str) -> Any:
        """Read one number (`u32`, `f64`, ...)."""
        packed = self._structs[kind]
        place = self._place(packed.size, f"a {kind}")
        (value,) = packed.unpack_from(self._window, place)
        self.offset += packed.size
        return value

    def count(self) -> int:
        """Read a count or a length: 32 bits in version 1, 64 bits in later versions."""
        size = self._length.size
        place = self._place(size, "a length")
        (value,) = self._length.unpack_from(self._window, place)
        self.offset += size
        return int(value)

    def string(self, what: str) -> str:
        """Read a string; bytes that are not UTF-8 become surrogate escapes."""
        start = self.offset
        length = self.count()
        if length > self.file.size - self.offset:
            self.offset = start
            raise self.fail(
                f"{what} has a stated length of {length} bytes, which do not fit into the rest "
                "of the file"
            )
        place = self._place(length, what)
        decoded = str(self._window[place : place + length], "utf-8", "surrogateescape")
        self.offset += length
        return decoded

    def value(self, key: str) -> MetadataValue:
        """Read the type and content of a metadata value; arrays are only skipped."""
        kind = self._kind(key)
        if kind != "array":
            return MetadataValue(kind, self._scalar(kind, key))
        start_type, content = self._array(key)
        return MetadataValue(f"array[{start_type}]", content)

    def elements(self, kind: str, count: int) -> list[Any]:
        """Read `count` elements of a type."""
        if kind == "string":
            return self._strings(count)
        if kind in _CODES:
            layout = struct.Struct(f"{self.order}{count}{_CODES[kind]}")
            place = self._place(layout.size, f"{count} elements")
            numbers: tuple[Any, ...] = layout.unpack_from(self._window, place)
            self.offset += layout.size
            return [bool(n) for n in numbers] if kind == "bool" else list(numbers)
        return [self._array("a nested array")[1] for _ in range(count)]

    def _strings(self, count: int) -> list[str]:
        """Read strings: one alone, then in one loop those that are whole in the window."""
        unpack, width = self._length.unpack_from, self._length.size
        found: list[str] = []
        while len(found) < count:
            found.append(self.string("a string"))
            window, at = self._window, self.offset - self._base
            last = len(window) - width
            for _ in range(count - len(found)):
                if at > last:
                    break
                start = at + width
                end = start + unpack(window, at)[0]
                if end > len(window):
                    break
                found.append(str(window[start:end], "utf-8", "surrogateescape"))
                at = end
            self.offset = self._base + at
        return found

    def _kind(self, key: str) -> str:
        number = int(self.number("u32"))
        if number >= len(TYPES):
            self.offset -= 4
            raise self.fail(
                f"`{key}` has metadata type {number}, which GGUF does not define", _FAULTY
            )
        return TYPES[number]

    def _scalar(self, kind: str, key: str) -> Any:
        if kind == "string":
            return self.string(f"the value of `{key}`")
        number = self.number(kind)
        return bool(number) if kind == "bool" else number

    def _array(self, key: str) -> tuple[str, PackedArray]:
        kind, count = self._array_head(key)
        start = Cursor(self.file, self.version, self.order, self.offset)
        inner = self._skip(kind, count, key, _DEPTH)
        return inner, PackedArray(start, self.offset, inner, count)

    def _array_head(self, key: str) -> tuple[str, int]:
        kind = self._kind(key)
        count = self.count()
        if count * self._smallest(kind) > self.file.size - self.offset:
            raise self.fail(
                f"`{key}` has a stated length of {count} elements, which do not fit into the rest "
                "of the file"
            )
        return kind, count

    def _smallest(self, kind: str) -> int:
        return self._structs[kind].size if kind in _CODES else self._length.size

    def _skip(self, kind: str, count: int, key: str, depth: int) -> str:
        """Move past the elements of an array; return their type, in full for nested arrays."""
        if kind in _CODES:
            self.offset += count * self._smallest(kind)
            return kind
        if kind == "string":
            self._skip_strings(key, count)
            return kind
        if depth == 1:
            raise self.fail(f"`{key}` has arrays nested more than {_DEPTH} levels deep", _FAULTY)
        kinds = {self._skip(*self._array_head(key), key, depth - 1) for _ in range(count)}
        if len(kinds) > 1:
            raise self.fail(f"`{key}` mixes arrays of {' and '.join(sorted(kinds))}", _FAULTY)
        return f"array[{kinds.pop() if kinds else 'u8'}]"

    def _skip_strings(self, key: str, count: int) -> None:
        unpack, width = self._length.unpack_from, self._length.size
        start, left = self.offset, count
        while left and self.offset + width <= self.file.size:
            likely = (self.offset - start) * left // (count - left) if left < count else 0
            at, window = self._place(width, "a length", likely), self._window
            rest = left
            try:
                for rest in range(left, 0, -1):  # noqa: B007  # the final value is used below
                    at += unpack(window, at)[0] + width
                rest = 0
            except (struct.error, OverflowError):
                pass  # the next length is in a later window, or past the end
            left, self.offset = rest, self._base + at
        if left or self.offset > self.file.size:
            self.offset = start
            raise self.fail(f"the strings of `{key}` extend past the end of the file")

    def _place(self, nbytes: int, what: str, likely: int = 0) -> int:
        """Return the index of the next bytes in the window; read a new window if necessary.

        `likely` is how many bytes will probably be needed in all, including those that follow.
        """
        place = self.offset - self._base
        if place + nbytes <= len(self._window):
            return place
        if nbytes > self.file.size - self.offset:
            raise self.fail(f"the file ends where {what} is expected")
        wanted = max(self._reads, min(likely, _LARGEST_ARRAY_READ))
        self._window = self.file.read(self.offset, max(nbytes, wanted))
        self._base = self.offset
        self._reads = min(2 * self._reads, _LARGEST_READ)
        return 0


def pack_string(content: str) -> bytes:
    """Return a string as GGUF v3 stores it."""
    raw = content.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def pack_value(key: str, value: MetadataValue) -> bytes:
    """Return the type and content of a value as GGUF v3 stores them.

    Raises `ConversionError` for a type that GGUF does not have, and if the content has another
    type.
    """
    try:
        return _pack(value)
    except (struct.error, AttributeError, TypeError, OverflowError) as error:
        message = f"the metadata value of `{key}` is not a valid {value.type}: {error}"
        raise ConversionError(message) from error


def _pack(value: MetadataValue) -> bytes:
    kind = "string" if value.type == TEXT else value.type
    element = element_type(kind)
    if element is not None:
        return struct.pack("<I", TYPES.index("array")) + _pack_array(element, value.content)
    if kind not in TYPES:
        raise ConversionError(f"GGUF does not support the metadata type `{kind}`")
    return struct.pack("<I", TYPES.index(kind)) + _pack_scalar(kind, value.content)


def _pack_scalar(kind: str, content: Any) -> bytes:
    return pack_string(content) if kind == "string" else struct.pack("<" + _CODES[kind], content)


def _pack_array(kind: str, content: Sequence[Any]) -> bytes:
    nested = element_type(kind)
    head = struct.pack("<IQ", TYPES.index("array" if nested else kind), len(content))
    raw = content.raw if isinstance(content, PackedArray) else None
    if raw is not None:
        return head + raw
    if nested is not None:
        return head + b"".join(_pack_array(nested, each) for each in content)
    if kind == "string":
        return head + b"".join(map(pack_string, content))
    return head + struct.pack(f"<{len(content)}{_CODES[kind]}", *content)
