"""NVFP4: 4-bit floats, with an FP8 scale per 16 elements and an optional tensor scale.

In GGUF, weights are blocks of ggml. The tensor `NAME.scale` beside `NAME.weight`, for the whole
weight or for each expert, is that of llama.cpp's converter for models of ModelOpt and
compressed-tensors; llama.cpp multiplies the product of the weight by it. `NAME.input_scale` scales
activations.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from weightctl.dtype import ENCODINGS, DType
from weightctl.schemes.compressed_tensors import describe_compressed
from weightctl.schemes.cutting import cut_upright
from weightctl.schemes.layout import PartContent, StoredPart, WeightEncoding
from weightctl.schemes.microscaled import (
    IN_PAIRS,
    MICROSCALED_NAMES,
    cut_microscaled,
    infer_microscaled,
    read_float_codes,
)
from weightctl.schemes.naming import LogicalWeight, NameEndings, align_counts
from weightctl.schemes.scheme import Scheme, SchemeOptions, WrittenScheme

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.schemes.arrays.tensors import SchemeTensors
    from weightctl.schemes.arrays.values import Decoding
    from weightctl.schemes.naming import Candidate

# MLX stores the scales as U8.
_BLOCK, _SCALES = 16, ("F8_E4M3", "U8")
_ABOVE = ("weight_scale_2", ".weight_global_scale")
# The number of elements in a block of ggml's NVFP4.
_GGML_BLOCK = 64
_GGML_NAMES = NameEndings(".scale", ".weight", ".weight", ("NVFP4",), (".input_scale",))


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode codes of floats; the tensor or each expert can have another scale.

    ModelOpt multiplies by this scale, and compressed-tensors divides by it.
    """
    from weightctl.schemes.arrays.blocks import Microscaled
    from weightctl.schemes.arrays.rounding import E2M1
    from weightctl.schemes.arrays.tables import PerBlock, PlainNumbers
    from weightctl.schemes.arrays.values import Decoding, Scaled, ScaleUse, WholeScale

    stored.refuse_others(*_ABOVE, ".pre_quant_scale")
    shape = stored.shape
    codes, grid = read_float_codes(stored, _BLOCK)
    scales = PlainNumbers(stored.table(1), DType.float8_e4m3fn)
    place = stored.find(*_ABOVE)
    above, is_divided = None, False
    if place is not None:
        info = stored.tensors[place].info
        above = stored.per_block(place, stored.grid(shape, align_counts(info.shape, shape)))
        is_divided = info.name.endswith("global_scale")
    values = Scaled(
        numbers=codes,
        scales=PerBlock(scales, grid),
        codes=E2M1,
        above=above,
        is_divided=is_divided,
        factors=stored.input_factors(),
    )
    found = Decoding(shape, values)
    if codes.packing.axis != 1 or values.factors is not None or shape[-1] % _GGML_BLOCK:
        return found
    whole: WholeScale | None = None
    if place is not None:
        info = stored.tensors[place].info
        if info.encoding.name != "F32" or info.size not in {1, prod(shape[:-2])}:
            return found
        use = ScaleUse.DIVIDES if is_divided else ScaleUse.MULTIPLIES
        whole = WholeScale(stored.floats(place, info.size), use)
        if not whole.is_usable():
            return found
    # The weight as ggml's NVFP4, without the scale of the whole weight.
    raw = PerBlock(PlainNumbers(stored.table(1, grid.counts[-1]), DType.uint8), grid)
    blocks = Microscaled(codes, raw, ENCODINGS["NVFP4"])
    return found._replace(microscaled=blocks, whole=None if whole and whole.is_one() else whole)


SCHEME = Scheme(
    label="NVFP4",
    summary="NVFP4: 4-bit floats, with an FP8 scale per 16 elements and an optional tensor scale",
    names=MICROSCALED_NAMES,
    infer=partial(infer_microscaled, bits=4, block=_BLOCK, scales=_SCALES),
    decode=_decode,
    cut=cut_microscaled,
)


def _infer_ggml(candidate: Candidate) -> LogicalWeight | None:
    shape = candidate.numbers.shape
    matrices = shape[0] if len(shape) == 3 else 1
    is_fit = len(shape) in {2, 3} and candidate.scales.shape in {(1,), (matrices,)}
    return LogicalWeight(shape) if is_fit and candidate.scales.encoding.name == "F32" else None


def _decode_ggml(stored: SchemeTensors) -> Decoding:
    from weightctl.schemes.arrays.tables import BlockNumbers
    from weightctl.schemes.arrays.values import Decoding, Scaled, ScaleUse, WholeScale

    stored.refuse_others()
    shape = stored.shape
    grid = stored.grid(shape, (*stored.scales.shape, *(1,) * (len(shape) - 1)))
    values = Scaled(numbers=BlockNumbers(0, shape[-1]), scales=stored.per_block(1, grid))
    whole = WholeScale(stored.floats(1, stored.scales.size), ScaleUse.MULTIPLIES_VALUES)
    if shape[-1] % stored.numbers.encoding.block or not whole.is_usable():
        return Decoding(shape, values)
    return Decoding(shape, values, whole=whole)


GGML_SCHEME = Scheme(
    label="NVFP4",
    summary="llama.cpp's NVFP4: blocks of ggml, with a tensor that scales the "
    "whole weight or each expert",
    names=(_GGML_NAMES,),
    infer=_infer_ggml,
    decode=_decode_ggml,
    cut=cut_upright,
)


def _encode(shape: tuple[int, ...], _: SchemeOptions, __: Encoding) -> WeightEncoding:
    return _encode_with(shape, 0)


def _encode_with(shape: tuple[int, ...], whole: float) -> WeightEncoding:
    """Return how a weight is stored with a scale of the whole weight; 0 if its peak decides."""
    from weightctl.schemes.arrays.rounding import Microscaled4

    parts = (
        StoredPart(".weight_packed", PartContent.CODES, "U8", IN_PAIRS),
        StoredPart(".weight_scale", PartContent.SCALES, "F8_E4M3"),
        StoredPart(".weight_global_scale", PartContent.WHOLE_SCALE, "F32"),
    )
    return WeightEncoding(parts, shape, Microscaled4(_BLOCK, is_nvidia=True, whole=whole))


def _describe(_: SchemeOptions, ignored: Sequence[str]) -> dict[str, Any]:
    weights = {
        "num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group",
        "group_size": _BLOCK, "scale_dtype": "torch.float8_e4m3fn",
        "zp_dtype": "torch.float8_e4m3fn",
    }  # fmt: skip
    return describe_compressed("nvfp4-pack-quantized", weights, None, ignored)


NVFP4A16, NVFP4 = (
    WrittenScheme(
        name=name,
        summary=summary,
        encode=_encode,
        encode_with=_encode_with,
        settings=_describe,
        defaults=SchemeOptions(group=_BLOCK),
        shares_peak=True,
        note=note,
    )
    for name, summary, note in (
        (
            "NVFP4A16",
            "4-bit floats (E2M1), with an FP8 scale per 16 elements and one for the weight",
            "",
        ),
        (
            "NVFP4",
            "the same as NVFP4A16: activations keep 16 bits",
            (
                "NVFP4 weights are written, and activations keep 16 bits (as in NVFP4A16): scales "
                "of activations need calibration data"
            ),
        ),
    )
)
