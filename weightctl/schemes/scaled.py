"""8-bit values, with a scale per tensor, per row, per expert or per block; smaller ones in bytes.

compressed-tensors, DeepSeek, ModelOpt, FBGEMM, torchao, quanto and ComfyUI store FP8 and INT8 in
this way. Tensors with the same names and bytes of several values are ModelOpt's INT4, with elements
of two rows in a byte, and BitNet's -1, 0 and 1, with elements of four rows.
"""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any

from weightctl.schemes.compressed_tensors import describe_compressed
from weightctl.schemes.cutting import cut_upright
from weightctl.schemes.layout import Packing, PartContent, StoredPart, WeightEncoding
from weightctl.schemes.naming import LogicalWeight, NameEndings, align_counts, covers, tiles
from weightctl.schemes.scheme import Scheme, SchemeOptions, WrittenScheme
from weightctl.schemes.settings import is_plain_comfy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.schemes.arrays.tensors import SchemeTensors
    from weightctl.schemes.arrays.values import Decoding
    from weightctl.schemes.naming import Candidate

_F8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_BYTES = (*_F8, "I8", "U8", "F4")
# Bytes, or pairs of 4-bit floats: shapes and encodings determine how scales apply.
SCALED = (
    NameEndings(
        ".weight_scale", ".weight", ".weight", _BYTES,
        (
            ".weight_scale_2", ".input_scale", ".pre_quant_scale", ".weight_zero_point",
            ".input_zero_point", ".input_scale_ub", ".comfy_quant",
        ),
    ),
    NameEndings(
        ".weight_scale_inv", ".weight", ".weight", _BYTES, (".input_scale", ".activation_scale")
    ),
    NameEndings(".scales", ".weight", ".weight", _BYTES, (".zero_points", ".qzeros")),
    NameEndings(".scale_weight", ".weight", ".weight", _F8, (".scale_input",)),
    NameEndings(".scale", ".weight", ".weight", _BYTES),
    NameEndings(
        "._weight_scale", "._weight_qdata", ".weight", (*_F8, "I8"),
        ("._weight_zero_point", "._weight_act_pre_scale", "._weight_per_tensor_scale"),
    ),
    NameEndings(
        ".weight._scale", ".weight._data", ".weight", (*_F8, "I8"),
        (".input_scale", ".output_scale"),
    ),
    NameEndings("_weight_scale", "", "", _BYTES, ("_weight_scale_2", "_input_scale")),
    NameEndings("_scale_inv", "", "", _BYTES, ("_activation_scale",)),
    NameEndings("_scale", "", "", _BYTES, ("_zero_point", "_input_scale")),
)  # fmt: skip
_INTEGERS = {"I8": "INT8", "U8": "UINT8"}
_ZEROS = (".weight_zero_point", ".zero_points", ".qzeros", "_zero_point")
_ZERO_ENDINGS = ("weight_zero_point", *_ZEROS)


def _is_plain(candidate: Candidate) -> bool:
    """Whether each byte is a value; unsigned bytes then have a zero point for each scale."""
    scales = candidate.scales.shape
    is_unsigned = candidate.numbers.encoding.name == "U8"
    return not is_unsigned or any(candidate.shape(ending) == scales for ending in _ZEROS)


def _infer(candidate: Candidate) -> LogicalWeight | None:
    name, shape = candidate.numbers.encoding.name, candidate.numbers.shape
    if not _is_plain(candidate) or not covers(candidate.scales.shape, shape):
        return None
    return LogicalWeight(shape, element=_INTEGERS.get(name, name))


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode values that are stored separately."""
    from weightctl.schemes.arrays.values import Decoding, Scaled

    numbers, shape = stored.numbers, stored.shape
    stored.refuse_others(*_ZERO_ENDINGS, ".comfy_quant")
    _check_comfy(stored)
    if numbers.encoding.block != 1:
        raise stored.cannot_dequantize(
            f"`{numbers.name}` has the block encoding "
            f"{numbers.encoding}; one number per element is required"
        )
    grid = stored.grid(shape, align_counts(stored.scales.shape, shape))
    place, zeros = stored.find(*_ZERO_ENDINGS), None
    if place is not None:
        info = stored.tensors[place].info
        if align_counts(info.shape, shape) != grid.counts:
            raise stored.cannot_dequantize(f"the shape of `{info.name}` does not match its scales")
    scales = stored.per_block(1, grid, powers=True)
    if place is not None:
        zeros = stored.per_block(place, grid)
    values = Scaled(numbers=stored.plain(0), scales=scales, zeros=zeros)
    is_float = numbers.encoding.name.startswith("F")
    middle = 0 if numbers.encoding.name == "I8" else 128
    return Decoding(shape, values, bits=0 if is_float else 8, middle=middle)


def _check_comfy(stored: SchemeTensors) -> None:
    place = stored.find(".comfy_quant")
    if place is None:
        return
    try:
        document = json.loads(stored.raw(place))
    except (ValueError, RecursionError):
        document = None
    if not is_plain_comfy(document):
        raise stored.cannot_dequantize(
            f"`{stored.tensors[place].info.name}` states an unsupported format: {document!r}"
        )


SCHEME = Scheme(
    label="{element} scaled",
    summary="8-bit values, with a scale per tensor, per row, per expert or per block",
    names=SCALED,
    infer=_infer,
    decode=_decode,
    cut=cut_upright,
)


def _infer_int4(candidate: Candidate) -> LogicalWeight | None:
    if _is_plain(candidate) or len(candidate.numbers.shape) < 2:
        return None
    *lead, rows, columns = candidate.numbers.shape
    scales = candidate.scales.shape
    if scales[:-1] != (*lead, 2 * rows) or not tiles(scales[-1], columns):
        return None
    return LogicalWeight((*lead, 2 * rows, columns))


def _decode_int4(stored: SchemeTensors) -> Decoding:
    """Decode signed values; there can be factors for the inputs."""
    from weightctl.schemes.arrays.tables import PackedNumbers
    from weightctl.schemes.arrays.values import Decoding, Scaled

    stored.refuse_others(".pre_quant_scale")
    grid = stored.grid(stored.shape, stored.scales.shape)
    values = Scaled(
        numbers=PackedNumbers(stored.table(0), Packing(4, 8, axis=0), signed=True),
        scales=stored.per_block(1, grid),
        factors=stored.input_factors(),
    )
    return Decoding(stored.shape, values, bits=0 if values.factors else 4)


MODELOPT = Scheme(
    label="INT4 scaled",
    summary="ModelOpt's INT4: signed integers, with a scale per group; each byte "
    "has elements of two rows",
    names=SCALED,
    infer=_infer_int4,
    decode=_decode_int4,
    cut=cut_upright,
)


def _infer_ternary(candidate: Candidate) -> LogicalWeight | None:
    """Return a weight if the config states this scheme; shapes do not determine it."""
    if _is_plain(candidate) or len(candidate.numbers.shape) < 2:
        return None
    if candidate.settings.text("quant_method") != "bitnet" or prod(candidate.scales.shape) != 1:
        return None
    *lead, rows, columns = candidate.numbers.shape
    return LogicalWeight((*lead, 4 * rows, columns))


def _decode_ternary(stored: SchemeTensors) -> Decoding:
    """Decode values, which are divided by the scale, or multiplied by it in newer layers."""
    from weightctl.schemes.arrays.tables import Ternary
    from weightctl.schemes.arrays.values import Decoding, Scaled

    stored.refuse_others()
    if len(stored.shape) != 2:
        raise stored.cannot_dequantize(
            f"it has shape {list(stored.shape)}, but a matrix is expected"
        )
    grid = stored.grid(stored.shape, (1, 1))
    values = Scaled(
        numbers=Ternary(stored.table(0), stored.numbers.shape[0]),
        scales=stored.per_block(1, grid),
        inverse=stored.settings.text("linear_class") != "autobitlinear",
    )
    return Decoding(stored.shape, values)


BITNET = Scheme(
    label="BitNet 1.58-bit",
    summary="BitNet: values -1, 0 and 1, with one scale per tensor; each byte has "
    "elements of four rows",
    names=SCALED,
    infer=_infer_ternary,
    decode=_decode_ternary,
)

# The block of scales in DeepSeek's and Qwen's checkpoints.
_BLOCK = 128


def _encode_tensor(shape: tuple[int, ...], _: SchemeOptions, scales: Encoding) -> WeightEncoding:
    return _encode_floats(shape, ".weight_scale", scales.name, 0, 0)


def _encode_rows(shape: tuple[int, ...], _: SchemeOptions, scales: Encoding) -> WeightEncoding:
    return _encode_floats(shape, ".weight_scale", scales.name, 1, shape[1])


def _encode_blocks(shape: tuple[int, ...], _: SchemeOptions, __: Encoding) -> WeightEncoding:
    """Store a float32 scale for each square block; the last ones can be incomplete."""
    return _encode_floats(shape, ".weight_scale_inv", "F32", _BLOCK, _BLOCK)


def _encode_floats(
    shape: tuple[int, ...], ending: str, scales: str, block_rows: int, block_columns: int
) -> WeightEncoding:
    """Store a scale for each block, or for the whole weight if its size is 0."""
    from weightctl.schemes.arrays.rounding import Float8

    parts = (
        StoredPart(".weight", PartContent.CODES, "F8_E4M3"),
        StoredPart(ending, PartContent.SCALES, scales),
    )
    return WeightEncoding(parts, shape, Float8(block_rows, block_columns, scales))


def _describe_floats(strategy: str, per: str, ignored: Sequence[str]) -> dict[str, Any]:
    common = {"num_bits": 8, "type": "float", "symmetric": True}
    activations = {**common, "strategy": per, "dynamic": True, "observer": None}
    weights = {**common, "strategy": strategy}
    return describe_compressed("float-quantized", weights, activations, ignored)


def _describe_blocks(_: SchemeOptions, ignored: Sequence[str]) -> dict[str, Any]:
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [_BLOCK, _BLOCK],
        "modules_to_not_convert": [*ignored],
    }


FP8 = WrittenScheme(
    name="FP8",
    summary="8-bit floats (E4M3), with one scale for the weight; activations are scaled per tensor",
    encode=_encode_tensor,
    settings=lambda _, ignored: _describe_floats("tensor", "tensor", ignored),
    shares_peak=True,
)
FP8_DYNAMIC = WrittenScheme(
    name="FP8_DYNAMIC",
    summary="8-bit floats (E4M3), with a scale per row; activations are scaled per token",
    encode=_encode_rows,
    settings=lambda _, ignored: _describe_floats("channel", "token", ignored),
)
FP8_BLOCK = WrittenScheme(
    name="FP8_BLOCK",
    summary="8-bit floats (E4M3), with a scale per block of 128 x 128 elements, "
    "as in the FP8 models of DeepSeek and Qwen",
    encode=_encode_blocks,
    settings=_describe_blocks,
)
