"""NVFP4: 4-bit floats, with an FP8 scale per 16 elements and an optional tensor scale."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from weightctl.dtype import DType
from weightctl.schemes import decoding, encoding
from weightctl.schemes.microscaled import (
    MICROSCALED_NAMES,
    NVFP_BLOCK,
    cut_microscaled,
    infer_nvfp,
    make_block_grid,
    read_float_codes,
)
from weightctl.schemes.naming import align_counts
from weightctl.schemes.scheme import Scheme
from weightctl.schemes.written import (
    SchemeOptions,
    WrittenScheme,
    describe_compressed,
    refuse_groups,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from weightctl.codecs.base import U8
    from weightctl.dtype import Encoding
    from weightctl.schemes.decoding import Decoding, Scaled, SchemeTensors
    from weightctl.schemes.encoding import Codes, WeightEncoding
    from weightctl.schemes.naming import Candidate, LogicalWeight

_ABOVE = ("weight_scale_2", ".weight_global_scale")
# The number of elements in a block of ggml's NVFP4.
_GGML_BLOCK = 64


def _infer(candidate: Candidate) -> LogicalWeight | None:
    return infer_nvfp(candidate, 4)


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode codes of floats; the tensor or each expert can have another scale.

    ModelOpt multiplies by this scale, and compressed-tensors divides by it.
    """
    stored.refuse_others(*_ABOVE, ".pre_quant_scale")
    shape = stored.shape
    codes, axis = read_float_codes(stored)
    grid = make_block_grid(stored, NVFP_BLOCK, axis)
    # MLX stores the bytes of FP8 as U8.
    scales = decoding.PlainNumbers(stored.table(1), DType.float8_e4m3fn)
    place = stored.find(*_ABOVE)
    above, is_divided = None, False
    if place is not None:
        info = stored.tensors[place].info
        above = stored.per_block(place, stored.grid(shape, align_counts(info.shape, shape)))
        is_divided = info.name.endswith("global_scale")
    values = decoding.Scaled(
        numbers=codes,
        scales=decoding.PerBlock(scales, grid),
        codes=decoding.E2M1,
        above=above,
        is_divided=is_divided,
        factors=stored.input_factors(),
    )
    found = decoding.Decoding(shape, values)
    if axis != 1 or values.factors is not None or shape[-1] % _GGML_BLOCK:
        return found
    whole: decoding.WholeScale | None = None
    if place is not None:
        info = stored.tensors[place].info
        if info.encoding.name != "F32" or info.size not in {1, prod(shape[:-2])}:
            return found
        use = decoding.ScaleUse
        whole = decoding.WholeScale(
            stored.floats(place, info.size), use.DIVIDES if is_divided else use.MULTIPLIES
        )
        if not whole.is_usable():
            return found
    blocks = _find_blocks(stored, values)
    return found._replace(microscaled=blocks, whole=None if whole and whole.is_one() else whole)


def _find_blocks(stored: SchemeTensors, values: Scaled) -> decoding.NvidiaMicroscaled:
    """Return the weight as ggml's NVFP4, without the scale of the whole weight."""
    table = stored.table(1, values.scales.grid.counts[-1])
    scales = decoding.PerBlock(decoding.PlainNumbers(table, DType.uint8), values.scales.grid)
    return decoding.NvidiaMicroscaled(values.numbers, scales)


SCHEME = Scheme(
    label="NVFP4", names=MICROSCALED_NAMES, infer=_infer, decode=_decode, cut=cut_microscaled
)


def _encode(shape: tuple[int, ...], _: SchemeOptions, __: Encoding) -> WeightEncoding:
    return _encode_with(shape, 0)


def _encode_with(shape: tuple[int, ...], whole: float) -> WeightEncoding:
    """Return how a weight is stored with a scale of the whole weight; 0 if its peak decides."""
    rows, columns = shape
    blocks = columns // NVFP_BLOCK
    return encoding.WeightEncoding(
        parts=(
            encoding.StoredPart(".weight_packed", (rows, columns // 2), "U8", unit=columns // 2),
            encoding.StoredPart(".weight_scale", (rows, blocks), "F8_E4M3", unit=blocks),
            encoding.StoredPart(".weight_global_scale", (1,), "F32"),
        ),
        rows=rows, columns=columns,
        rounding=encoding.Microscaled4(NVFP_BLOCK, is_nvidia=True, whole=whole),
        pack=partial(_pack, whole), needs_peak=not whole,
    )  # fmt: skip


def _pack(whole: float, made: Codes, peak: np.float32) -> tuple[U8, U8, U8]:
    packed = encoding.pack_rows(made.codes, 4)
    return packed, made.scales, encoding.as_bytes(encoding.global_scale(peak, whole))


def _describe(_: SchemeOptions, ignored: Sequence[str]) -> dict[str, Any]:
    weights = {
        "num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group",
        "group_size": NVFP_BLOCK, "scale_dtype": "torch.float8_e4m3fn",
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
        refuse=refuse_groups,
        defaults=SchemeOptions(group=NVFP_BLOCK),
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
