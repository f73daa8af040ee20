"""bitsandbytes' NF4 and FP4: two codes per byte; another tensor states the shape, as JSON."""

from __future__ import annotations

import json
from math import prod
from struct import pack as pack_bytes
from typing import TYPE_CHECKING, Any

from weightctl.schemes import decoding, encoding
from weightctl.schemes.naming import LogicalWeight, NameEndings, divide_up, read_shape
from weightctl.schemes.scheme import Scheme
from weightctl.schemes.written import SchemeOptions, WrittenScheme
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from weightctl.codecs.base import U8
    from weightctl.dtype import Encoding
    from weightctl.schemes.decoding import Decoding, NestedScales, SchemeTensors
    from weightctl.schemes.encoding import Codes, WeightEncoding
    from weightctl.schemes.naming import Candidate

_KINDS = ("nf4", "fp4")
_STATES = tuple(f".weight.quant_state.bitsandbytes__{kind}" for kind in _KINDS)
_MAP, _NESTED, _NESTED_MAP = (
    ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map",
)  # fmt: skip
_OTHERS = (_MAP, _NESTED, _NESTED_MAP, *_STATES)


def _infer(candidate: Candidate) -> LogicalWeight | None:
    """Return a weight with the shape that a tensor with JSON states."""
    for kind, ending in zip(_KINDS, _STATES, strict=True):
        raw = candidate.bytes_of(ending)
        if raw is None or candidate.numbers.encoding.block != 1:
            continue
        try:
            document = json.loads(raw)
        except (ValueError, RecursionError):
            return None
        shape = read_shape(document.get("shape")) if is_object(document) else None
        if shape and divide_up(prod(shape), 2) == candidate.numbers.nbytes:
            return LogicalWeight(shape, element=kind.upper())
    return None


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode codes and their scales, which can be quantized too."""
    stored.refuse_others(*_OTHERS)
    state_place, map_place = stored.find(*_STATES), stored.find(_MAP)
    state = _read_state(stored, state_place)
    block = state.get("blocksize")
    if map_place is None or type(block) is not int or block <= 0:
        raise stored.cannot_dequantize("its `quant_map` or a valid `blocksize` is missing")
    count = -(-prod(stored.shape) // block)
    nested, is_bytes = None, stored.scales.encoding.name == "U8"
    if is_bytes:
        nested = _read_nested(stored, state, count)
    if stored.scales.size != count:
        raise stored.cannot_dequantize(
            f"`{stored.scales.name}` has shape {list(stored.scales.shape)}, but {count} scales "
            f"are needed, one for each block of {block} values"
        )
    words = stored.numbers.size
    values = decoding.CodedRow(
        codes=stored.table(0, words),
        values=stored.floats(map_place, 16),
        scales=stored.plain(1, count),
        block=block,
        columns=stored.shape[-1],
        nested=nested,
    )
    return decoding.Decoding(stored.shape, values)


def _read_nested(stored: SchemeTensors, state: dict[str, Any], count: int) -> NestedScales:
    place, map_place = stored.find(_NESTED), stored.find(_NESTED_MAP)
    block, offset = state.get("nested_blocksize"), state.get("nested_offset", 0.0)
    if (
        place is None or map_place is None or type(block) is not int or block <= 0
        or not isinstance(offset, int | float) or abs(offset) > 1e300
        or stored.tensors[place].info.size != -(-count // block)
    ):  # fmt: skip
        raise stored.cannot_dequantize(
            "its scales are quantized, but the tensors or settings to dequantize them are missing"
        )
    scales = stored.plain(place, stored.tensors[place].info.size)
    return decoding.NestedScales(stored.floats(map_place, 256), scales, block, float(offset))


def _read_state(stored: SchemeTensors, place: int | None) -> dict[str, Any]:
    """Return the quantization state of a weight, which is JSON."""
    try:
        document = None if place is None else json.loads(stored.raw(place))
    except (ValueError, RecursionError):
        document = None
    if not is_object(document):
        raise stored.cannot_dequantize("its quantization state cannot be read")
    return document


SCHEME = Scheme(
    label="{element}",
    names=(NameEndings(".weight.absmax", ".weight", ".weight", (), _OTHERS),),
    infer=_infer,
    decode=_decode,
)

# The values of NF4 by code, and the size of a block (bitsandbytes, `functional.py`).
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
_BLOCK = 64


def _encode(shape: tuple[int, ...], _: SchemeOptions, scales: Encoding) -> WeightEncoding:
    """Store blocks of the weight as one row of elements; their scales are float32."""
    blocks = prod(shape) // _BLOCK
    state = {
        "quant_type": _KINDS[0],
        "blocksize": _BLOCK,
        "dtype": scales.called,
        "shape": [*shape],
    }
    raw = json.dumps(state).encode()
    return encoding.WeightEncoding(
        parts=(
            encoding.StoredPart(".weight", (blocks * _BLOCK // 2, 1), "U8", unit=_BLOCK // 2),
            encoding.StoredPart(".weight.absmax", (blocks,), "F32", unit=4),
            encoding.StoredPart(_MAP, (16,), "F32", content=pack_bytes("<16f", *_NF4)),
            encoding.StoredPart(_STATES[0], (len(raw),), "U8", content=raw),
        ),
        rows=blocks, columns=_BLOCK, rounding=encoding.Coded(_NF4), pack=_pack,
    )  # fmt: skip


def _pack(made: Codes, _peak: np.float32) -> tuple[U8, U8]:
    return encoding.pack_high_first(made.codes), made.scales


def _refuse(shape: tuple[int, ...], _: SchemeOptions) -> str:
    if prod(shape) % _BLOCK == 0:
        return ""
    return f"its {prod(shape)} elements are not a multiple of the block size, {_BLOCK}"


def _describe(_: SchemeOptions, ignored: Sequence[str]) -> dict[str, Any]:
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "bnb_4bit_quant_type": _KINDS[0],
        "bnb_4bit_use_double_quant": False,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_skip_modules": [*ignored],
    }


BNB_NF4 = WrittenScheme(
    name="BNB-NF4",
    summary="bitsandbytes' 4-bit codes (NF4), with a scale per 64 elements",
    encode=_encode,
    settings=_describe,
    refuse=_refuse,
)
