"""Bytes, and 4-bit floats, with scales: FP8, INT8, MXFP, NVFP4, BitNet."""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.schemes.dequantize.blocks import Microscaled
from weightctl.schemes.dequantize.form import DecodingScheme
from weightctl.schemes.dequantize.grid import PerBlock
from weightctl.schemes.dequantize.integers import column_factors, compressed_tensors, two_rows
from weightctl.schemes.dequantize.numbers import PackedNumbers, PlainNumbers, Powers, Ternary
from weightctl.schemes.dequantize.packing import PackingLayout
from weightctl.schemes.dequantize.parts import align_counts
from weightctl.schemes.dequantize.values import E2M1, Scaled
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from weightctl.schemes.dequantize.parts import SchemeTensors

__all__ = ["bitnet", "llm_int8", "mxfp4", "mxfp8", "nvfp4", "scaled"]

_ZEROS = ("weight_zero_point", ".zero_points", ".qzeros", "_zero_point")
_ABOVE = ("weight_scale_2", ".weight_global_scale")
# ComfyUI's formats whose numbers are what their scales make of them, and nothing else.
_COMFY = ("float8_e4m3fn", "float8_e5m2", "int8_tensorwise")
# What bitsandbytes' kernels multiply with, for 1 / 127.
_PER_127 = 7.874015718698502e-3


def scaled(parts: SchemeTensors) -> DecodingScheme:
    """Numbers of 8 bits times the scale of the tensor, of a row, of an expert or of a block."""
    numbers = parts.numbers
    if numbers.encoding.name == "I32":
        return compressed_tensors(parts)
    if numbers.encoding.name == "U8" and numbers.shape != parts.shape:
        return two_rows(parts)
    parts.refuse_others(*_ZEROS, ".comfy_quant")
    _check_comfy(parts)
    if numbers.encoding.block != 1:
        raise parts.cannot_dequantize(f"`{numbers.name}` is of {numbers.encoding}")
    grid = parts.grid(parts.shape, align_counts(parts.scales.shape, parts.shape))
    place = parts.find(*_ZEROS)
    if (
        place is not None
        and align_counts(parts.tensors[place].info.shape, parts.shape) != grid.counts
    ):
        raise parts.cannot_dequantize(f"`{parts.tensors[place].info.name}` does not fit its scales")
    values = Scaled(
        numbers=parts.plain(0),
        scales=parts.per_block(1, grid, powers=True),
        zeros=None if place is None else parts.per_block(place, grid),
    )
    is_float = numbers.encoding.name.startswith("F")
    middle = 0 if numbers.encoding.name == "I8" else 128
    return DecodingScheme(parts.shape, values, bits=0 if is_float else 8, middle=middle)


def _check_comfy(parts: SchemeTensors) -> None:
    place = parts.find(".comfy_quant")
    if place is None:
        return
    try:
        document = json.loads(parts.raw(place))
    except (ValueError, RecursionError):
        document = None
    kind = document.get("format") if is_object(document) else None
    if kind not in _COMFY:
        raise parts.cannot_dequantize(f"`{parts.tensors[place].info.name}` says {kind!r}")


def mxfp8(parts: SchemeTensors) -> DecodingScheme:
    """FP8 with a power of two for each 32 numbers of a row."""
    parts.refuse_others()
    if parts.numbers.shape != parts.shape or parts.numbers.encoding.block != 1:
        raise parts.cannot_dequantize(
            f"`{parts.numbers.name}` is of shape {list(parts.numbers.shape)}"
        )
    grid = parts.grid(parts.shape, parts.scales.shape)
    values = Scaled(numbers=parts.plain(0), scales=parts.per_block(1, grid, powers=True))
    return DecodingScheme(parts.shape, values)


def mxfp4(parts: SchemeTensors) -> DecodingScheme:
    """4-bit floats with a power of two for each 32.

    gpt-oss has its experts' outputs as rows, though its modules, and transformers' own way to
    dequantize them (`convert_moe_packed_tensors`), have the inputs. Blocks stay as they are.
    """
    parts.refuse_others()
    shape = parts.shape
    codes, axis = _codes(parts)
    counts = (*shape[:-1], shape[-1] // 32)
    if axis == 0:
        counts = (*shape[:-2], shape[-2] // 32, shape[-1])
    grid = parts.grid(shape, counts)
    has_nan = parts.scales.encoding.name == "F8_E8M0"
    if not has_nan and parts.scales.encoding.name != "U8":
        raise parts.cannot_dequantize(f"`{parts.scales.name}` is of {parts.scales.encoding}")
    table = parts.table(1, grid.counts[-1])
    scales, steps = parts.per_block(1, grid), E2M1
    if not has_nan:
        # The greatest power is one of float32 when it is halved, as ggml does it.
        scales, steps = PerBlock(Powers(table, 128), grid), tuple(2 * value for value in E2M1)
    values = Scaled(numbers=codes, scales=scales, codes=steps)
    exponents = PerBlock(PlainNumbers(table, DType.uint8), grid)
    blocks = Microscaled(codes, exponents, has_nan) if axis else None
    turned = parts.numbers.name.endswith("_blocks") and len(shape) == 3
    made = (*shape[:-2], shape[-1], shape[-2]) if turned else shape
    return DecodingScheme(made, values, turned=turned, microscaled=blocks)


def nvfp4(parts: SchemeTensors) -> DecodingScheme:
    """4-bit floats with an FP8 scale for each 16, and perhaps a scale for the tensor or expert.

    ModelOpt multiplies with the latter, compressed-tensors divides by it.
    """
    parts.refuse_others(*_ABOVE, ".pre_quant_scale")
    shape = parts.shape
    codes, axis = _codes(parts)
    counts = (*shape[:-1], shape[-1] // 16)
    if axis == 0:
        counts = (*shape[:-2], shape[-2] // 16, shape[-1])
    grid = parts.grid(shape, counts)
    # MLX has the bytes of FP8 as plain ones.
    scales = PlainNumbers(parts.table(1), DType.float8_e4m3fn)
    place = parts.find(*_ABOVE)
    above = None
    if place is not None:
        info = parts.tensors[place].info
        above = parts.per_block(place, parts.grid(shape, align_counts(info.shape, shape)))
    values = Scaled(
        numbers=codes,
        scales=PerBlock(scales, grid),
        codes=E2M1,
        above=above,
        is_divided=place is not None and parts.tensors[place].info.name.endswith("global_scale"),
        factors=column_factors(parts),
    )
    return DecodingScheme(shape, values)


def _codes(parts: SchemeTensors) -> tuple[PackedNumbers, int]:
    """Return the codes of 4-bit floats, and the axis that they are packed along, 1 or 0."""
    info, size = parts.numbers, parts.numbers.encoding.size
    per_word = 2 * size
    if prod(info.shape) // info.encoding.block * per_word != prod(parts.shape):
        raise parts.cannot_dequantize(f"`{info.name}` is of shape {list(info.shape)}")
    is_along = len(info.shape) != len(parts.shape) or info.shape[-1] != parts.shape[-1]
    if is_along or info.encoding.name == "F4":
        table = parts.table(0, parts.shape[-1] // per_word)
        return PackedNumbers(table, PackingLayout(4, 8 * size), 1), 1
    return PackedNumbers(parts.table(0), PackingLayout(4, 8 * size), 0), 0


def bitnet(parts: SchemeTensors) -> DecodingScheme:
    """BitNet's -1, 0 and 1, divided by the scale; its newer layers multiply with it."""
    parts.refuse_others()
    if len(parts.shape) != 2:
        raise parts.cannot_dequantize(f"it is of shape {list(parts.shape)}")
    grid = parts.grid(parts.shape, (1, 1))
    values = Scaled(
        numbers=Ternary(parts.table(0), parts.numbers.shape[0]),
        scales=parts.per_block(1, grid),
        inverse=parts.settings.text("linear_class") != "autobitlinear",
    )
    return DecodingScheme(parts.shape, values)


def llm_int8(parts: SchemeTensors) -> DecodingScheme:
    """LLM.int8() of bitsandbytes: the largest absolute value of a row stands for 127."""
    parts.refuse_others(".weight_format")
    place = parts.find(".weight_format")
    if place is not None and parts.raw(place).strip(b"\0"):
        raise parts.cannot_dequantize(
            f"`{parts.tensors[place].info.name}` says an order for one kind of GPU"
        )
    grid = parts.grid(parts.shape, (parts.shape[0], 1))
    values = Scaled(numbers=parts.plain(0), scales=parts.per_block(1, grid), factor=_PER_127)
    return DecodingScheme(parts.shape, values)
