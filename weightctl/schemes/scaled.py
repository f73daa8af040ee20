"""8-bit values, with a scale per tensor, per row, per expert or per block.

compressed-tensors, DeepSeek, ModelOpt, FBGEMM, torchao, quanto and ComfyUI store FP8 and INT8 in
this way.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from weightctl.schemes import decoding
from weightctl.schemes.cutting import cut_upright
from weightctl.schemes.scheme import SCALED, LogicalWeight, Scheme, align_counts, covers
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.scheme import Candidate

__all__ = ["SCHEME", "is_plain"]

_INTEGERS = {"I8": "INT8", "U8": "UINT8"}
_ZEROS = (".weight_zero_point", ".zero_points", ".qzeros", "_zero_point")
_ZERO_ENDINGS = ("weight_zero_point", *_ZEROS)
# ComfyUI's formats that need nothing but the scales.
_COMFY = ("float8_e4m3fn", "float8_e5m2", "int8_tensorwise")


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
    kind = document.get("format") if is_object(document) else None
    if kind not in _COMFY:
        raise stored.cannot_dequantize(
            f"`{stored.tensors[place].info.name}` states the unsupported format {kind!r}"
        )


SCHEME = Scheme(
    label="{element} scaled", names=SCALED, infer=_infer, decode=_decode, cut=cut_upright
)
