"""NF4 and FP4 of bitsandbytes: codes in a row of bytes, whatever the shape of the weight."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from weightctl.schemes.dequantize.form import DecodingScheme
from weightctl.schemes.dequantize.tables import Region
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.codecs.base import F32
    from weightctl.schemes.dequantize.numbers import NumberTable
    from weightctl.schemes.dequantize.parts import SchemeTensors
    from weightctl.schemes.dequantize.tables import Table
    from weightctl.weights.derived import ReadableTensor

__all__ = ["four_bit"]

_STATES = (
    ".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4",
)  # fmt: skip
_MAP, _NESTED, _NESTED_MAP = (
    ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Nested:
    """Scales that are quantized too: codes into `values`, scales for these, and an offset."""

    values: F32
    scales: NumberTable
    block: int
    offset: float


@dataclass(frozen=True, slots=True, eq=False)
class _FourBit:
    """Codes into `values`, two in a byte, the first above; a scale for each `block` of them.

    Rows have `columns` elements, and may begin within a byte.
    """

    codes: Table
    values: F32
    scales: NumberTable
    block: int
    columns: int
    nested: _Nested | None

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> F32:
        """Return a rectangle: whole rows, or a part of one."""
        first = region.top * self.columns + region.left
        last = first + prod(region.shape)
        word = np.dtype(self.codes.word).itemsize
        begin, end = first // (2 * word), -(-last // (2 * word))
        stored = self.codes.read(inputs, Region(0, 1, begin, end)).view(np.uint8)[0]
        codes = np.stack([stored >> np.uint8(4), stored & np.uint8(15)], axis=-1).reshape(-1)
        skip = first - 2 * begin * word
        values = np.empty(last - first, np.float32)
        np.take(self.values, codes[skip : skip + last - first], out=values, mode="clip")
        blocks = np.arange(first, last) // self.block
        with np.errstate(all="ignore"):
            scales = self._scales(inputs, int(blocks[0]), int(blocks[-1]) + 1)
            np.multiply(values, scales[blocks - blocks[0]], out=values)
        return values.reshape(region.shape)

    def _scales(self, inputs: Sequence[ReadableTensor], first: int, last: int) -> F32:
        found = self.scales.read(inputs, Region(0, 1, first, last)).reshape(-1)
        nested = self.nested
        if nested is None:
            plain: F32 = found.astype(np.float32)
            return plain
        blocks = np.arange(first, last) // nested.block
        cells = Region(0, 1, int(blocks[0]), int(blocks[-1]) + 1)
        scales: F32 = nested.scales.read(inputs, cells).reshape(-1).astype(np.float32)
        made = np.empty(last - first, np.float32)
        np.take(nested.values, found, out=made, mode="clip")
        np.multiply(made, scales[blocks - blocks[0]], out=made)
        np.add(made, np.float32(nested.offset), out=made)
        return made


def four_bit(parts: SchemeTensors) -> DecodingScheme:
    """The values of the codes times scales, which a second quantization may have made bytes."""
    parts.refuse_others(_MAP, _NESTED, _NESTED_MAP, *_STATES)
    state_place, map_place = parts.find(*_STATES), parts.find(_MAP)
    state = _document(parts, state_place)
    block = state.get("blocksize")
    if map_place is None or type(block) is not int or block <= 0:
        raise parts.cannot_dequantize("nothing says what its codes stand for")
    count = -(-prod(parts.shape) // block)
    nested, is_bytes = None, parts.scales.encoding.name == "U8"
    if is_bytes:
        nested = _read_nested(parts, state, count)
    if parts.scales.size != count:
        raise parts.cannot_dequantize(
            f"`{parts.scales.name}` is of shape {list(parts.scales.shape)}"
        )
    words = parts.numbers.size
    values = _FourBit(
        codes=parts.table(0, words),
        values=_values(parts, map_place, 16),
        scales=parts.plain(1, count),
        block=block,
        columns=parts.shape[-1],
        nested=nested,
    )
    return DecodingScheme(parts.shape, values)


def _read_nested(parts: SchemeTensors, state: dict[str, Any], count: int) -> _Nested:
    place, map_place = parts.find(_NESTED), parts.find(_NESTED_MAP)
    block, offset = state.get("nested_blocksize"), state.get("nested_offset", 0.0)
    if (
        place is None or map_place is None or type(block) is not int or block <= 0
        or not isinstance(offset, int | float) or abs(offset) > 1e300
        or parts.tensors[place].info.size != -(-count // block)
    ):  # fmt: skip
        raise parts.cannot_dequantize("its scales are quantized, and nothing says how")
    scales = parts.plain(place, parts.tensors[place].info.size)
    return _Nested(_values(parts, map_place, 256), scales, block, float(offset))


def _values(parts: SchemeTensors, place: int, count: int) -> F32:
    info = parts.tensors[place].info
    if info.encoding.name != "F32" or info.size != count:
        raise parts.cannot_dequantize(
            f"`{info.name}` is {info.encoding} of shape {list(info.shape)}"
        )
    return np.frombuffer(parts.raw(place), np.float32).copy()


def _document(parts: SchemeTensors, place: int | None) -> dict[str, Any]:
    try:
        document = None if place is None else json.loads(parts.raw(place))
    except (ValueError, RecursionError):
        document = None
    if not is_object(document):
        raise parts.cannot_dequantize("what says how it was quantized cannot be read")
    return document
