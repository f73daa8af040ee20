"""8-bit values, with a scale per tensor, per row, per expert or per block.

compressed-tensors, DeepSeek, ModelOpt, FBGEMM, torchao, quanto and ComfyUI store FP8 and INT8 in
this way.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from weightctl.schemes import decoding, encoding
from weightctl.schemes.cutting import cut_upright
from weightctl.schemes.naming import SCALED, LogicalWeight, align_counts, covers, divide_up
from weightctl.schemes.scheme import Scheme
from weightctl.schemes.settings import is_plain_comfy
from weightctl.schemes.written import (
    SchemeOptions,
    WrittenScheme,
    accept_any,
    describe_compressed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from weightctl.codecs.base import U8
    from weightctl.dtype import Encoding
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.encoding import Codes, WeightEncoding
    from weightctl.schemes.naming import Candidate

_INTEGERS = {"I8": "INT8", "U8": "UINT8"}
_ZEROS = (".weight_zero_point", ".zero_points", ".qzeros", "_zero_point")
_ZERO_ENDINGS = ("weight_zero_point", *_ZEROS)


def is_plain(candidate: Candidate) -> bool:
    """Whether each byte is a value; unsigned bytes then have a zero point for each scale."""
    scales = candidate.scales.shape
    is_unsigned = candidate.numbers.encoding.name == "U8"
    return not is_unsigned or any(candidate.shape(ending) == scales for ending in _ZEROS)


def _infer(candidate: Candidate) -> LogicalWeight | None:
    name, shape = candidate.numbers.encoding.name, candidate.numbers.shape
    if not is_plain(candidate) or not covers(candidate.scales.shape, shape):
        return None
    return LogicalWeight(shape, element=_INTEGERS.get(name, name))


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode values that are stored separately."""
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
    values = decoding.Scaled(numbers=stored.plain(0), scales=scales, zeros=zeros)
    is_float = numbers.encoding.name.startswith("F")
    middle = 0 if numbers.encoding.name == "I8" else 128
    return decoding.Decoding(shape, values, bits=0 if is_float else 8, middle=middle)


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
    label="{element} scaled", names=SCALED, infer=_infer, decode=_decode, cut=cut_upright
)

# The block of scales in DeepSeek's and Qwen's checkpoints.
_BLOCK = 128


def _encode_tensor(shape: tuple[int, ...], _: SchemeOptions, scales: Encoding) -> WeightEncoding:
    """Store a scale for the whole weight."""
    rows, columns = shape
    return encoding.WeightEncoding(
        parts=(
            encoding.StoredPart(".weight", shape, "F8_E4M3", unit=columns),
            encoding.StoredPart(".weight_scale", (1,), scales.name),
        ),
        rows=rows, columns=columns, rounding=encoding.Float8(0, 0, scales.name), pack=_pack,
        needs_peak=True,
    )  # fmt: skip


def _encode_rows(shape: tuple[int, ...], _: SchemeOptions, scales: Encoding) -> WeightEncoding:
    """Store a scale for each row."""
    rows, columns = shape
    return encoding.WeightEncoding(
        parts=(
            encoding.StoredPart(".weight", shape, "F8_E4M3", unit=columns),
            encoding.StoredPart(".weight_scale", (rows, 1), scales.name, unit=scales.size),
        ),
        rows=rows, columns=columns, rounding=encoding.Float8(1, columns, scales.name), pack=_pack,
    )  # fmt: skip


def _encode_blocks(shape: tuple[int, ...], _: SchemeOptions, __: Encoding) -> WeightEncoding:
    """Store a float32 scale for each square block; the last ones can be incomplete."""
    rows, columns = shape
    counts = divide_up(rows, _BLOCK), divide_up(columns, _BLOCK)
    return encoding.WeightEncoding(
        parts=(
            encoding.StoredPart(".weight", shape, "F8_E4M3", unit=_BLOCK * columns),
            encoding.StoredPart(".weight_scale_inv", counts, "F32", unit=4 * counts[1]),
        ),
        rows=rows, columns=columns, rounding=encoding.Float8(_BLOCK, _BLOCK, "F32"), pack=_pack,
        unit=_BLOCK,
    )  # fmt: skip


def _pack(made: Codes, _peak: np.float32) -> tuple[U8, U8]:
    return made.codes, made.scales


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
    refuse=accept_any,
    shares_peak=True,
)
FP8_DYNAMIC = WrittenScheme(
    name="FP8_DYNAMIC",
    summary="8-bit floats (E4M3), with a scale per row; activations are scaled per token",
    encode=_encode_rows,
    settings=lambda _, ignored: _describe_floats("channel", "token", ignored),
    refuse=accept_any,
)
FP8_BLOCK = WrittenScheme(
    name="FP8_BLOCK",
    summary="8-bit floats (E4M3), with a scale per block of 128 x 128 elements, "
    "as in the FP8 models of DeepSeek and Qwen",
    encode=_encode_blocks,
    settings=_describe_blocks,
    refuse=accept_any,
)
