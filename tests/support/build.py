"""Checkpoints created byte by byte, so that they can also be invalid, and without weightctl.

Metadata values are pairs of a type, in weightctl's spelling, and a content: `("u32", 7)`,
`("array[string]", ["a", "b"])`; `("raw", b"...")` is written unchanged.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

Text = str | bytes
TypedValue = tuple[str, Any]

VALUE_TYPES = (
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64",
)  # fmt: skip
CODES = {
    "u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f",
    "bool": "?", "u64": "Q", "i64": "q", "f64": "d",
}  # fmt: skip
# ggml's ids of the types that the tests use.
F32, F16, Q8_0, Q4_K, Q6_K, I8, I16, I32, I64, F64, BF16 = 0, 1, 8, 12, 14, 24, 25, 26, 27, 28, 30


class Tensor(NamedTuple):
    """A line of a GGUF tensor table and its data; the shape is outermost first.

    By default, the stated offset is the actual one.
    """

    name: Text
    shape: tuple[int, ...]
    type: int
    data: bytes = b""
    offset: int | None = None


class Gguf(NamedTuple):
    """A GGUF file with a version and a byte order."""

    version: int = 3
    order: str = "<"

    def number(self, kind: str, value: float) -> bytes:
        return struct.pack(self.order + CODES[kind], value)

    def length(self, value: int) -> bytes:
        return self.number("u32" if self.version == 1 else "u64", value)

    def string(self, text: Text) -> bytes:
        raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
        return self.length(len(raw)) + raw

    def value(self, kind: str, content: Any) -> bytes:
        """Return a metadata value: the number of its type, then its content."""
        if kind == "raw":
            return bytes(content)
        if kind.startswith("array["):
            return self.number("u32", VALUE_TYPES.index("array")) + self._array(kind[6:-1], content)
        return self.number("u32", VALUE_TYPES.index(kind)) + self._scalar(kind, content)

    def _scalar(self, kind: str, content: Any) -> bytes:
        return self.string(content) if kind == "string" else self.number(kind, content)

    def _array(self, kind: str, content: Iterable[Any]) -> bytes:
        elements = list(content)
        inner = kind[6:-1] if kind.startswith("array[") else None
        head = self.number("u32", VALUE_TYPES.index("array" if inner is not None else kind))
        if inner is not None:
            return head + self.length(len(elements)) + b"".join(
                self._array(inner, element) for element in elements
            )  # fmt: skip
        return head + self.length(len(elements)) + b"".join(
            self._scalar(kind, element) for element in elements
        )  # fmt: skip

    def header(
        self,
        tensors: Iterable[Tensor] = (),
        values: Iterable[tuple[Text, TypedValue]] = (),
        alignment: int = 32,
    ) -> bytes:
        """Return all bytes before the padding and the data."""
        tensors, values = list(tensors), list(values)
        parts = [
            b"GGUF",
            self.number("u32", self.version),
            self.length(len(tensors)),
            self.length(len(values)),
            *(self.string(key) + self.value(*value) for key, value in values),
        ]
        place = 0
        for tensor in tensors:
            parts += [
                self.string(tensor.name),
                self.number("u32", len(tensor.shape)),
                *(self.length(size) for size in reversed(tensor.shape)),
                self.number("u32", tensor.type),
                self.number("u64", place if tensor.offset is None else tensor.offset),
            ]
            place += len(padded(tensor.data, alignment))
        return b"".join(parts)

    def file(
        self,
        tensors: Iterable[Tensor] = (),
        values: Mapping[str, TypedValue] | Iterable[tuple[Text, TypedValue]] = (),
        alignment: int = 32,
    ) -> bytes:
        tensors = list(tensors)
        pairs = values.items() if isinstance(values, Mapping) else values
        header = self.header(tensors, pairs, alignment)
        data = b"".join(padded(tensor.data, alignment) for tensor in tensors)
        return padded(header, alignment) + data


def padded(raw: bytes, alignment: int) -> bytes:
    return raw + bytes(-len(raw) % alignment)


def safetensors(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    """Return a safetensors file; the header is an object for JSON, or the exact bytes."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype: Any, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    """Return the entry of a tensor in a safetensors header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_of(
    tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]],
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Return a valid safetensors file of `{name: (dtype, shape, bytes)}`."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    data = b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = entry(dtype, list(shape), len(data), len(data) + len(raw))
        data += raw
    return safetensors(header, data)


def index_of(weight_map: Mapping[str, Any], metadata: Any = None) -> bytes:
    """Return a `model.safetensors.index.json`."""
    return json.dumps({"metadata": metadata or {}, "weight_map": weight_map}, indent=1).encode()
