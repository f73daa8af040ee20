"""Floats in blocks of 32 along an axis, each with a power of two: MXFP4, MXFP6, MXFP8.

These are the formats of the Open Compute Project; NVIDIA's NVFP4 has the same layout. Values are
packed along the last axis; for Llama 4's experts, along the axis before it. gpt-oss stores MXFP4 as
bytes `[..., rows, groups, 16]`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from typing import TYPE_CHECKING, Any

from weightctl.dtype import ENCODINGS, DType
from weightctl.schemes.compressed_tensors import COMPRESSED, describe_compressed
from weightctl.schemes.cutting import Along, cut_companion, cut_packed
from weightctl.schemes.layout import Packing, PartContent, StoredPart, WeightEncoding
from weightctl.schemes.mlx import MLX
from weightctl.schemes.naming import LogicalWeight, NameEndings, divide_exactly
from weightctl.schemes.scaled import SCALED
from weightctl.schemes.scheme import Scheme, SchemeOptions, WrittenScheme

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.schemes.arrays.tables import BlockGrid, PackedNumbers
    from weightctl.schemes.arrays.tensors import SchemeTensors
    from weightctl.schemes.arrays.values import Decoding
    from weightctl.schemes.cutting import Axes
    from weightctl.schemes.naming import Candidate
    from weightctl.weights.info import TensorInfo

MICROSCALED_NAMES = (*SCALED, COMPRESSED, MLX)
_BLOCK, _SCALES = 32, ("U8", "F8_E8M0")
# How compressed-tensors and gpt-oss pack 4-bit floats.
IN_PAIRS = Packing(4, 8)
# The names of gpt-oss in Hugging Face's checkpoint, and in the original one.
_GPT_OSS_NAMES = (
    NameEndings("_scales", "_blocks", "", ("U8",)),
    NameEndings(".scales", ".blocks", "", ("U8",)),
)
# The modules that openai/gpt-oss-20b's config leaves out.
_KEPT = ("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head")


def infer_microscaled(
    candidate: Candidate, *, bits: int, block: int = _BLOCK, scales: tuple[str, ...] = _SCALES
) -> LogicalWeight | None:
    """Return a weight of floats with this bit width, block size and encoding of scales."""
    if candidate.scales.encoding.name not in scales:
        return None
    # Biases belong to MLX's integers.
    if (candidate.shape(".biases") or candidate.shape(".qbiases")) is not None:
        return None
    numbers = candidate.numbers
    return _infer_blocks(numbers.shape, numbers.encoding, candidate.scales.shape, bits, block)


@lru_cache(maxsize=1024)  # a model has few different shapes, each in many layers
def _infer_blocks(
    numbers: tuple[int, ...], packed: Encoding, scales: tuple[int, ...], bits: int, block: int
) -> LogicalWeight | None:
    if len(numbers) != len(scales) or not _holds(packed, bits):
        return None
    for axis in range(len(numbers) - 1, max(len(numbers) - 3, -1), -1):
        length = block * scales[axis]
        if divide_exactly(8 * packed.size * numbers[axis], packed.block * length) == bits:
            shape = (*numbers[:axis], length, *numbers[axis + 1 :])
            if shape == (*scales[:axis], length, *scales[axis + 1 :]):
                return LogicalWeight(shape)
    return None


def _holds(encoding: Encoding, bits: int) -> bool:
    """Whether an encoding can store floats of this bit width; packed floats are stored as bytes."""
    if encoding.name == "I32":
        return False  # compressed-tensors' integers
    return encoding.name == "U32" or (bits == 8) == encoding.name.startswith("F8")


def read_float_codes(stored: SchemeTensors, block: int) -> tuple[PackedNumbers, BlockGrid]:
    """Return the codes of 4-bit floats, and the grid of their blocks along the packed axis."""
    from weightctl.schemes.arrays.tables import PackedNumbers

    info, size, shape = stored.numbers, stored.numbers.encoding.size, stored.shape
    packing = Packing(4, 8 * size)
    if prod(info.shape) // info.encoding.block * packing.numbers != prod(shape):
        raise stored.cannot_dequantize(
            f"`{info.name}` of shape {list(info.shape)} does not hold "
            f"one 4-bit code for each of the {prod(shape)} elements"
        )
    is_along = len(info.shape) != len(shape) or info.shape[-1] != shape[-1]
    if is_along or info.encoding.name == "F4":
        table = stored.table(0, shape[-1] // packing.numbers)
        return PackedNumbers(table, packing), stored.grid(shape, (*shape[:-1], shape[-1] // block))
    counts = (*shape[:-2], shape[-2] // block, shape[-1])
    numbers = PackedNumbers(stored.table(0), packing._replace(axis=0))
    return numbers, stored.grid(shape, counts)


def _decode_4(stored: SchemeTensors) -> Decoding:
    """Decode codes of floats, which ggml's blocks can hold too."""
    from weightctl.schemes.arrays.blocks import Microscaled
    from weightctl.schemes.arrays.rounding import E2M1
    from weightctl.schemes.arrays.tables import PerBlock, PlainNumbers, Powers
    from weightctl.schemes.arrays.values import Decoding, Scaled

    stored.refuse_others()
    codes, grid = read_float_codes(stored, _BLOCK)
    has_nan = stored.scales.encoding.name == "F8_E8M0"
    if not has_nan and stored.scales.encoding.name != "U8":
        raise stored.cannot_dequantize(
            f"`{stored.scales.name}` is stored as {stored.scales.encoding} instead of F8_E8M0 or U8"
        )
    table = stored.table(1, grid.counts[-1])
    scales, steps = stored.per_block(1, grid), E2M1
    if not has_nan:
        # As in ggml, the powers are halved, so that float32 can hold the largest one, and the
        # values of codes are doubled.
        scales = PerBlock(Powers(table, 128), grid)
        steps = tuple(2 * value for value in steps)
    values = Scaled(numbers=codes, scales=scales, codes=steps)
    blocks = None
    if codes.packing.axis:
        exponents = PerBlock(PlainNumbers(table, DType.uint8), grid)
        blocks = Microscaled(codes, exponents, ENCODINGS["MXFP4"], is_checked=has_nan)
    return Decoding(stored.shape, values, microscaled=blocks)


def _decode_8(stored: SchemeTensors) -> Decoding:
    """Decode values that are stored separately."""
    from weightctl.schemes.arrays.values import Decoding, Scaled

    stored.refuse_others()
    if stored.numbers.shape != stored.shape or stored.numbers.encoding.block != 1:
        raise stored.cannot_dequantize(
            f"`{stored.numbers.name}` of shape {list(stored.numbers.shape)} does not hold one "
            f"number for each of the {prod(stored.shape)} elements"
        )
    grid = stored.grid(stored.shape, stored.scales.shape)
    scales = stored.per_block(1, grid, powers=True)
    return Decoding(stored.shape, Scaled(numbers=stored.plain(0), scales=scales))


def cut_microscaled(stored: SchemeTensors) -> list[Axes]:
    """Cut floats in blocks of a fixed size, and the scales of the blocks."""
    others = (cut_companion(stored, place) for place in range(2, len(stored.tensors)))
    return [cut_packed(stored.numbers, stored.shape), _cut_blocks(stored), *others]


def _cut_blocks(stored: SchemeTensors) -> Axes:
    """Return how the axes of a weight map to those of its scales, one for each block."""
    shape, scales = stored.shape, stored.scales.shape
    return [
        Along(axis, length // count)
        for axis, (length, count) in enumerate(zip(shape, scales, strict=True))
    ]


MXFP4_SCHEME, MXFP6_SCHEME, MXFP8_SCHEME = (
    Scheme(
        label=f"MXFP{bits}",
        summary=f"MXFP{bits}: {bits}-bit floats, with a power-of-two scale per block of "
        "32 elements",
        names=MICROSCALED_NAMES,
        infer=partial(infer_microscaled, bits=bits),
        decode=decode,
        cut=cut_microscaled,
    )
    for bits, decode in ((4, _decode_4), (6, None), (8, _decode_8))
)


def _infer_gpt_oss(candidate: Candidate) -> LogicalWeight | None:
    shape = candidate.numbers.shape
    if len(shape) < 2 or shape[-1] != 16 or shape[:-1] != candidate.scales.shape:
        return None
    rows = (*shape[:-2], _BLOCK * shape[-2])
    return LogicalWeight(_swap(rows) if _has_outputs_as_rows(candidate.numbers, rows) else rows)


def _has_outputs_as_rows(numbers: TensorInfo, shape: tuple[int, ...]) -> bool:
    """Whether a weight is of experts in Hugging Face's checkpoint.

    Its modules have inputs as rows, as transformers' own dequantization has
    (`convert_moe_packed_tensors`).
    """
    return numbers.name.endswith("_blocks") and len(shape) == 3


def _swap(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


def _decode_gpt_oss(stored: SchemeTensors) -> Decoding:
    """Decode a weight. Blocks keep the order of the file, also where rows are not outputs."""
    if not _has_outputs_as_rows(stored.numbers, stored.shape):
        return _decode_4(stored)
    rows = stored.weight._replace(shape=_swap(stored.shape))
    found = _decode_4(replace(stored, weight=rows))
    return found._replace(shape=stored.shape, transposed=True)


def _cut_gpt_oss(stored: SchemeTensors) -> list[Axes]:
    """Cut blocks and scales in the same way; the axis of the bytes of a block stays whole."""
    if _has_outputs_as_rows(stored.numbers, stored.shape):
        axes: Axes = (Along(0), Along(2, _BLOCK), Along(1))
    else:
        axes = _cut_blocks(stored)
    return [axes] * len(stored.tensors)


GPT_OSS_SCHEME = Scheme(
    label="MXFP4",
    summary="gpt-oss: MXFP4 as bytes `[..., rows, groups, 16]`, with a scale per "
    "group of 32 elements",
    names=_GPT_OSS_NAMES,
    infer=_infer_gpt_oss,
    decode=_decode_gpt_oss,
    cut=_cut_gpt_oss,
)


def _encode_4(shape: tuple[int, ...], _: SchemeOptions, __: Encoding) -> WeightEncoding:
    from weightctl.schemes.arrays.rounding import Microscaled4

    parts = (
        StoredPart(".weight_packed", PartContent.CODES, "U8", IN_PAIRS),
        StoredPart(".weight_scale", PartContent.SCALES, "U8"),
    )
    return WeightEncoding(parts, shape, Microscaled4(_BLOCK))


def _encode_8(shape: tuple[int, ...], _: SchemeOptions, __: Encoding) -> WeightEncoding:
    from weightctl.schemes.arrays.rounding import Microscaled8

    parts = (
        StoredPart(".weight", PartContent.CODES, "F8_E4M3"),
        StoredPart(".weight_scale", PartContent.SCALES, "U8"),
    )
    return WeightEncoding(parts, shape, Microscaled8(_BLOCK))


def _encode_gpt_oss(shape: tuple[int, ...], _: SchemeOptions, __: Encoding) -> WeightEncoding:
    from weightctl.schemes.arrays.rounding import Microscaled4

    blocks = (*shape[:-1], shape[-1] // _BLOCK)
    parts = (
        StoredPart("_blocks", PartContent.CODES, "U8", IN_PAIRS, shape=(*blocks, _BLOCK // 2)),
        StoredPart("_scales", PartContent.SCALES, "U8", shape=blocks),
    )
    return WeightEncoding(parts, shape, Microscaled4(_BLOCK))


def _describe_floats(bits: int) -> dict[str, Any]:
    return {
        "num_bits": bits, "type": "float", "symmetric": True, "strategy": "group",
        "group_size": _BLOCK, "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8",
    }  # fmt: skip


def _describe_4(_: SchemeOptions, ignored: Sequence[str]) -> dict[str, Any]:
    return describe_compressed("mxfp4-pack-quantized", _describe_floats(4), None, ignored)


def _describe_8(_: SchemeOptions, ignored: Sequence[str]) -> dict[str, Any]:
    activations = {**_describe_floats(8), "dynamic": True, "observer": None}
    return describe_compressed("mxfp8-quantized", _describe_floats(8), activations, ignored)


def _describe_gpt_oss(_: SchemeOptions, ignored: Sequence[str]) -> dict[str, Any]:
    kept = [name for name in ignored if name.endswith(".experts")]
    return {"modules_to_not_convert": [*_KEPT, *kept], "quant_method": "mxfp4"}


MXFP4 = WrittenScheme(
    name="MXFP4",
    summary="4-bit floats (E2M1), with a power-of-two scale per 32 elements",
    encode=_encode_4,
    settings=_describe_4,
    defaults=SchemeOptions(group=_BLOCK),
    variants={"gpt_oss": "weightctl.schemes.microscaled:MXFP4_EXPERTS"},
)
MXFP4_EXPERTS = WrittenScheme(
    name="MXFP4",
    summary="4-bit floats (E2M1), with a power-of-two scale per 32 elements, as gpt-oss has them",
    encode=_encode_gpt_oss,
    settings=_describe_gpt_oss,
    defaults=SchemeOptions(group=_BLOCK),
    of_experts=True,
)
MXFP8 = WrittenScheme(
    name="MXFP8",
    summary="8-bit floats (E4M3), with a power-of-two scale per 32 elements; "
    "activations are rounded in the same way",
    encode=_encode_8,
    settings=_describe_8,
    defaults=SchemeOptions(group=_BLOCK),
)
