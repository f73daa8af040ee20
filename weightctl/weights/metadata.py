"""Metadata values that keep the types they have in their file.

A type is one of GGUF's (`u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool string`), `array[...]` of a
type, or `text`: the plain string that safetensors uses for all values.
"""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import WeightctlError
from weightctl.text.columns import shorten_text
from weightctl.text.untyped import is_list, is_sequence
from weightctl.text.wording import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXT = "text"
INTEGERS = {
    f"{sign}{bits}": (-(1 << bits - 1) if sign == "i" else 0, (1 << bits - (sign == "i")) - 1)
    for sign in "ui"
    for bits in (8, 16, 32, 64)
}
_FLOATS = {"f32": "<f", "f64": "<d"}
_SCALARS = {*INTEGERS, *_FLOATS, "bool", "string"}
_PLAIN = {str, int, bool}
_DEPTH = 16
_UNSOUND = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip


class MetadataValue(NamedTuple):
    """A metadata value and the type it has on disk; the content of an array is a sequence."""

    type: str
    content: Any


def text(content: str) -> MetadataValue:
    """Return a plain string as a value of safetensors metadata."""
    return MetadataValue(TEXT, content)


def element_type(array_type: str) -> str | None:
    """Return `u32` for `array[u32]`; None if the type is not an array."""
    if array_type.startswith("array[") and array_type.endswith("]"):
        return array_type[6:-1]
    return None


def to_json(metadata: Mapping[str, MetadataValue]) -> str:
    """Return `{"key": {"type": "u32", "value": 7}, ...}`; infinities and NaN become strings.

    Raises `WeightctlError` if a value does not have its type.
    """
    plain = {key: {"type": v.type, "value": as_json(v.content)} for key, v in metadata.items()}
    for key, entry in plain.items():
        try:
            _check_content(entry["type"], entry["value"], _DEPTH)
        except (ValueError, OverflowError) as error:
            raise WeightctlError(f"the metadata value of `{key}`: {error}") from error
    return json.dumps(
        plain,
        allow_nan=False,
        separators=(",", ":"),
    )


def is_type(name: str) -> bool:
    """Whether a string is the name of a type."""
    return name == TEXT or _innermost(name) in _SCALARS


def parse_value(kind: str, written: str) -> Any:
    """Parse the text of a value of a type: `5`, `0x10`, `true`, `[1, 2]`, `words`.

    Arrays are JSON. Raises `ValueError` if the value does not have the type, and `OverflowError`
    for a float beyond its range.
    """
    if kind in {"string", TEXT}:
        content: Any = written
    elif kind == "bool":
        content = {"true": True, "false": False}.get(written.strip().lower(), written)
    elif kind in INTEGERS:
        content = int(written, 0)
    elif kind in _FLOATS:
        content = float(written)
    else:
        content = json.loads(written)
    return _check_content(kind, content, _DEPTH)


def as_json(content: Any) -> Any:
    """Return the content of a value in a form that JSON supports: NaN and infinities as strings."""
    if isinstance(content, float) and not math.isfinite(content):
        return str(content)
    if is_sequence(content):
        elements = content[:]
        # Vocabularies have hundreds of thousands of elements, all of one plain type.
        kinds = {*map(type, elements)}
        if kinds <= _PLAIN or (kinds == {float} and all(map(math.isfinite, elements))):
            return list(elements)
        return [as_json(element) for element in elements]
    return content


def describe_value(value: MetadataValue, room: int) -> str:
    """Return the part of a value that fits into `room` columns; an array begins with its length."""
    return _shorten_content(value.type, value.content, room)


def _shorten_content(kind: str, content: Any, room: int) -> str:
    element = element_type(kind)
    if element is None or not is_sequence(content):
        return shorten_text(_format_content(kind, content, room), room)
    # An element takes at least one column, and its separator two.
    count = room // 3 + 1
    elements = [_shorten_content(element, each, room) for each in content[:count]]
    if len(content) > count:
        elements.append("...")
    return shorten_text(f"[{len(content)}] {', '.join(elements)}", room)


def _format_content(kind: str, content: Any, room: int) -> str:
    if isinstance(content, str):
        # A text may have megabytes, so only the visible part is checked.
        return printable(content[: room + 1])
    if kind == "f32" and isinstance(content, float) and math.isfinite(content):
        return _single(content)
    return json.dumps(as_json(content)).strip('"')


def _single(number: float) -> str:
    """Return the shortest decimal that is rounded to this float32 value: 1e-05."""
    texts = (f"{number:.{digits}g}" for digits in range(6, 9))
    return next((text for text in texts if _in_32_bits(float(text)) == number), f"{number:.9g}")


def _in_32_bits(number: float) -> float:
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", number))
    except OverflowError:
        return float("inf")
    return float(rounded)


def from_json(document: str) -> dict[str, MetadataValue]:
    """Return the metadata that `to_json` wrote.

    Raises `WeightctlError` if a value does not have its type.
    """
    try:
        entries = json.loads(document)
        return {
            _key(key): MetadataValue(
                entry["type"], _check_content(entry["type"], entry["value"], _DEPTH)
            )
            for key, entry in entries.items()
        }
    except _UNSOUND as error:
        raise WeightctlError(f"the text is not the JSON of metadata with types: {error}") from error


def _key(key: str) -> str:
    if not key.encode():
        raise ValueError("a metadata key is empty")
    return key


def _check_content(kind: str, content: Any, depth: int) -> Any:
    element = element_type(kind)
    if element is not None and is_list(content) and depth and _innermost(kind) in _SCALARS:
        return [_check_content(element, each, depth - 1) for each in content]
    if kind == "bool" and isinstance(content, bool):
        return content
    if kind in {"string", TEXT} and isinstance(content, str):
        content.encode("utf-8", "surrogateescape" if kind == "string" else "strict")
        return content
    if kind in INTEGERS and isinstance(content, int) and not isinstance(content, bool):
        low, high = INTEGERS[kind]
        if low <= content <= high:
            return content
    if kind in _FLOATS and isinstance(content, float | int | str):
        packed = struct.Struct(_FLOATS[kind])
        return packed.unpack(packed.pack(float(content)))[0]
    raise ValueError(f"{content!r} is not a valid {kind}")


def _innermost(kind: str) -> str:
    while (element := element_type(kind)) is not None:
        kind = element
    return kind
