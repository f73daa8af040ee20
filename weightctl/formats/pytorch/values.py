"""Leaves of a PyTorch pickle that are not tensors: their texts and values.

Kinds are those of `weightctl.formats.pytorch.nesting`.
"""

from __future__ import annotations

import struct
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.formats.pickles.records import Blob, Global
from weightctl.formats.pytorch.records import (
    Array,
    Device,
    Encoded,
    NumpyScalar,
    NumPyType,
    Size,
    dtype_of,
)
from weightctl.storage.base import HeldRange
from weightctl.text.untyped import is_list, is_tuple
from weightctl.weights.info import Leaf
from weightctl.weights.metadata import INTEGERS, MetadataValue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.storage.base import ByteRange

_SCALARS = {
    "b1": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q",
    "u8": "Q", "f2": "e", "f4": "f", "f8": "d", "c8": "2f", "c16": "2d",
}  # fmt: skip
_LOW, _HIGH = INTEGERS["i64"]
_TYPES: dict[type, str] = {bool: "bool", float: "f64", str: "string"}
_SHOWN = 8
_LONGEST = 400
_LONGEST_NUMBER = 16


class PlainValue(NamedTuple):
    """A plain value: its leaf in the tree, its kind in the levels, and its metadata value.

    `kind` is empty if the value is only displayed; `value` is None if it is not stored.
    """

    leaf: Leaf
    kind: str = ""
    value: MetadataValue | None = None


def plain(record: Any, data: ByteRange) -> PlainValue | None:
    """Return a record as a plain value; None if it contains other objects."""
    if type(record) is NumpyScalar:
        record = _number(record, data)
    kind: type = record.__class__
    if kind in {bool, int, float, str, complex, NoneType}:
        return _single(record)
    if kind is Size or kind is list or kind is tuple:
        return _several(record)
    if kind is Global:
        return _describe_global(record)
    if kind is Array and is_list(record.content) and record.content:
        return None
    leaf = _LEAVES[kind](record) if kind in _LEAVES else None
    return None if leaf is None else PlainValue(leaf)


_LEAVES: dict[type, Callable[[Any], Leaf]] = {
    Leaf: lambda leaf: leaf,
    Array: lambda array: Leaf("numpy.ndarray", _describe_array(array)),
    Device: lambda device: Leaf("torch.device", device.name),
    NumPyType: lambda dtype: Leaf("numpy.dtype", dtype.code),
    Blob: lambda blob: Leaf("bytes", f"{blob.stop - blob.start} bytes"),
    Encoded: lambda encoded: Leaf("bytes", f"{len(encoded.text)} bytes"),
}


def _describe_array(array: Array) -> str:
    """Return the dtype and shape of an array whose elements are not numbers."""
    code = array.dtype.code if type(array.dtype) is NumPyType else "unknown"
    elements = array.shape[:_SHOWN] if is_tuple(array.shape) else ()
    return (
        f"{code} {_join_elements([each for each in elements if type(each) is int and _fits(each)])}"
    )


def _fits(number: int) -> bool:
    return _LOW <= number <= _HIGH


def _describe_global(record: Global) -> PlainValue:
    if dtype_of(record) is None:
        return PlainValue(Leaf("class", record.path))
    kind = "torch.dtype"
    return PlainValue(Leaf(kind, record.path), kind, MetadataValue("string", record.path))


def _single(value: Any) -> PlainValue:
    if value is None:
        return PlainValue(Leaf("None"), "None", MetadataValue("string", "None"))
    type_: type = value.__class__
    kind = type_.__name__
    if kind == "complex":
        return PlainValue(
            Leaf(kind, str(value)), kind, MetadataValue("array[f64]", [value.real, value.imag])
        )
    if kind == "int" and not _LOW <= value <= _HIGH:
        if value.bit_length() > 4096:
            return PlainValue(Leaf(kind, f"of {value.bit_length()} bits"))
        return PlainValue(
            Leaf(kind, shorten_text(str(value))), kind, MetadataValue("string", str(value))
        )
    if kind == "str" and not _is_storable(value):
        return PlainValue(Leaf(kind, shorten_text(value)))
    look = shorten_text(value) if kind == "str" else str(value)
    return PlainValue(Leaf(kind, look), kind, MetadataValue(_TYPES.get(type_, "i64"), value))


def _is_storable(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _several(record: Any) -> PlainValue | None:
    """Return a sequence of plain values of one type; None for other sequences."""
    elements = record.sizes if type(record) is Size else record
    kind = "torch.Size" if type(record) is Size else "list" if is_list(record) else "tuple"
    if not is_list(elements) and not is_tuple(elements):
        return PlainValue(Leaf(kind))
    if not elements and kind != "torch.Size":
        empty = "[]" if kind == "list" else "()"
        return PlainValue(Leaf(kind, empty), empty, MetadataValue("string", empty))
    element: type = elements[0].__class__ if elements else int
    if element not in {int, bool, float, str} or {type(each) for each in elements} - {element}:
        return None
    if element is int and not all(_LOW <= each <= _HIGH for each in elements):
        return None
    if element is str and not all(map(_is_storable, elements)):
        return None
    value = MetadataValue(f"array[{_TYPES.get(element, 'i64')}]", [*elements])
    return PlainValue(Leaf(kind, _join_elements(elements)), kind, value)


def _join_elements(elements: Sequence[Any]) -> str:
    first = ", ".join(
        shorten_text(each) if type(each) is str else str(each) for each in elements[:_SHOWN]
    )
    return f"[{len(elements)}] {first}, ..." if len(elements) > _SHOWN else f"[{first}]"


def shorten_text(text: str) -> str:
    """Return a text, truncated if it is too long to be displayed."""
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _number(scalar: NumpyScalar, data: ByteRange) -> Any:
    content = scalar.content
    text = content.text if type(content) is Encoded else content
    # Many scalars can share a text, and a longer one is not a scalar.
    is_long = type(text) is str and len(text) > _LONGEST_NUMBER
    raw = None if is_long else bytes_of(content, data)
    dtype = scalar.dtype if type(scalar.dtype) is NumPyType else NumPyType("unknown")
    other = Leaf("numpy.generic", shorten_text(dtype.code))
    if raw is None or dtype.code not in _SCALARS:
        return other
    try:
        packed = raw.read(0, _LONGEST_NUMBER + 1)
        number, *imaginary = struct.unpack(dtype.order + _SCALARS[dtype.code], packed)
    except struct.error:
        return other
    return complex(number, *imaginary) if imaginary else number


def bytes_of(content: Any, data: ByteRange) -> ByteRange | None:
    """Return the bytes that a record represents; None for other records."""
    if type(content) is Blob:
        return data.part(content.start, content.stop)
    try:
        if type(content) is Encoded:
            return HeldRange(memoryview(content.text.encode("latin-1")))
        if type(content) is str:
            return HeldRange(memoryview(content.encode("latin-1")))
    except UnicodeEncodeError:
        pass
    return None
