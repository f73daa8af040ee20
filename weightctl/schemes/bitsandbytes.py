"""bitsandbytes: NF4 and FP4 with two codes per byte, and LLM.int8().

Another tensor states the shape of the codes, as JSON. LLM.int8() are I8 values, with the largest
absolute value of each row.
"""

from __future__ import annotations

import json
from math import prod
from struct import pack as pack_bytes
from typing import TYPE_CHECKING, Any

from weightctl.schemes.cutting import cut_upright
from weightctl.schemes.layout import ConstantPart, Packing, PartContent, StoredPart, WeightEncoding
from weightctl.schemes.naming import LogicalWeight, NameEndings, divide_up, read_shape
from weightctl.schemes.scheme import Scheme, SchemeOptions, WrittenScheme
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.schemes.arrays.tensors import SchemeTensors
    from weightctl.schemes.arrays.values import Decoding, NestedScales
    from weightctl.schemes.naming import Candidate

_KINDS = ("nf4", "fp4")
_STATES = tuple(f".weight.quant_state.bitsandbytes__{kind}" for kind in _KINDS)
_MAP, _NESTED, _NESTED_MAP = (
    ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map",
)  # fmt: skip
# Two codes per byte, high bits first.
_HIGH_FIRST = Packing(4, 8, order=(1, 0))
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
    from weightctl.schemes.arrays.tables import PackedNumbers
    from weightctl.schemes.arrays.values import CodedRow, Decoding

    stored.refuse_others(*_OTHERS)
    state_place, map_place = stored.find(*_STATES), stored.find(_MAP)
    state = _read_state(stored, state_place)
    block = state.get("blocksize")
    if map_place is None or type(block) is not int or block <= 0:
        raise stored.cannot_dequantize("its `quant_map` or a valid `blocksize` is missing")
    count = -(-prod(stored.shape) // block)
    nested = None
    if stored.scales.encoding.name == "U8":
        nested = _read_nested(stored, state, count)
    if stored.scales.size != count:
        raise stored.cannot_dequantize(
            f"`{stored.scales.name}` has shape {list(stored.scales.shape)}, but {count} scales "
            f"are needed, one for each block of {block} values"
        )
    # Bytes are stored as any type.
    codes = stored.table(0)._replace(columns=stored.numbers.nbytes, word="u1")
    values = CodedRow(
        codes=PackedNumbers(codes, _HIGH_FIRST),
        values=stored.floats(map_place, 16),
        scales=stored.plain(1, count),
        block=block,
        columns=stored.shape[-1],
        nested=nested,
    )
    return Decoding(stored.shape, values)


def _read_nested(stored: SchemeTensors, state: dict[str, Any], count: int) -> NestedScales:
    from weightctl.schemes.arrays.values import NestedScales

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
    return NestedScales(stored.floats(map_place, 256), scales, block, float(offset))


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
    summary="bitsandbytes' NF4 and FP4: two codes per byte; another tensor states "
    "the shape, as JSON",
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
    from weightctl.schemes.arrays.rounding import Coded

    size, blocks = prod(shape), prod(shape) // _BLOCK
    state = {
        "quant_type": _KINDS[0],
        "blocksize": _BLOCK,
        "dtype": scales.called,
        "shape": [*shape],
    }
    raw = json.dumps(state).encode()
    parts = (
        StoredPart(".weight", PartContent.CODES, "U8", _HIGH_FIRST, shape=(size // 2, 1)),
        StoredPart(".weight.absmax", PartContent.SCALES, "F32", shape=(blocks,)),
        ConstantPart(_MAP, "F32", (16,), pack_bytes("<16f", *_NF4)),
        ConstantPart(_STATES[0], "U8", (len(raw),), raw),
    )
    return WeightEncoding(parts, (blocks, _BLOCK), Coded(_NF4))


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

_ROW_NAMES = (NameEndings(".SCB", ".weight", ".weight", ("I8",), (".weight_format",)),)
# The float32 that bitsandbytes' kernels use for 1 / 127.
_PER_127 = 7.874015718698502e-3


def _infer_rows(candidate: Candidate) -> LogicalWeight | None:
    shape = candidate.numbers.shape
    fits = len(shape) == 2 and candidate.scales.shape == shape[:1]
    return LogicalWeight(shape) if fits else None


def _decode_rows(stored: SchemeTensors) -> Decoding:
    """Decode rows whose largest absolute value represents 127."""
    from weightctl.schemes.arrays.values import Decoding, Scaled

    stored.refuse_others(".weight_format")
    place = stored.find(".weight_format")
    if place is not None and stored.raw(place).strip(b"\0"):
        raise stored.cannot_dequantize(
            f"`{stored.tensors[place].info.name}` states a layout that only some GPUs can read"
        )
    grid = stored.grid(stored.shape, (stored.shape[0], 1))
    scales = stored.per_block(1, grid)
    values = Scaled(numbers=stored.plain(0), scales=scales, factor=_PER_127)
    return Decoding(stored.shape, values)


LLM_INT8 = Scheme(
    label="LLM.int8()",
    summary="bitsandbytes' LLM.int8(): I8 values, with the largest absolute value of each row",
    names=_ROW_NAMES,
    infer=_infer_rows,
    decode=_decode_rows,
    cut=cut_upright,
)


def _encode_rows(shape: tuple[int, ...], _: SchemeOptions, __: Encoding) -> WeightEncoding:
    from weightctl.schemes.arrays.rounding import RowScaled

    parts = (
        StoredPart(".weight", PartContent.CODES, "I8"),
        StoredPart(".SCB", PartContent.SCALES, "F32", shape=shape[:1]),
        ConstantPart(".weight_format", "U8", (), b"\0"),
    )
    return WeightEncoding(parts, shape, RowScaled())


def _describe_rows(_: SchemeOptions, ignored: Sequence[str]) -> dict[str, Any]:
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": False,
        "load_in_8bit": True,
        "llm_int8_threshold": 6.0,
        "llm_int8_has_fp16_weight": False,
        "llm_int8_skip_modules": [*ignored],
    }


BNB_INT8 = WrittenScheme(
    name="BNB-INT8",
    summary="bitsandbytes' 8-bit integers (LLM.int8()), with a scale per row",
    encode=_encode_rows,
    settings=_describe_rows,
)
