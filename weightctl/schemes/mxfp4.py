"""MXFP4: 4-bit floats, with a power-of-two scale per block of 32 elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.dtype import DType
from weightctl.schemes import decoding, encoding
from weightctl.schemes.microscaled import (
    MICROSCALED_NAMES,
    MXFP_BLOCK,
    cut_microscaled,
    infer_mxfp,
    make_block_grid,
    read_float_codes,
)
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
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.encoding import Codes, WeightEncoding
    from weightctl.schemes.naming import Candidate, LogicalWeight


def _infer(candidate: Candidate) -> LogicalWeight | None:
    return infer_mxfp(candidate, 4)


def decode(stored: SchemeTensors) -> Decoding:
    """Decode codes of floats, which ggml's blocks can hold too."""
    stored.refuse_others()
    codes, axis = read_float_codes(stored)
    grid = make_block_grid(stored, MXFP_BLOCK, axis)
    has_nan = stored.scales.encoding.name == "F8_E8M0"
    if not has_nan and stored.scales.encoding.name != "U8":
        raise stored.cannot_dequantize(
            f"`{stored.scales.name}` is stored as {stored.scales.encoding} instead of F8_E8M0 or U8"
        )
    table = stored.table(1, grid.counts[-1])
    scales, steps = stored.per_block(1, grid), decoding.E2M1
    if not has_nan:
        # As in ggml, the powers are halved, so that float32 can hold the largest one, and the
        # values of codes are doubled.
        scales = decoding.PerBlock(decoding.Powers(table, 128), grid)
        steps = tuple(2 * value for value in steps)
    values = decoding.Scaled(numbers=codes, scales=scales, codes=steps)
    exponents = decoding.PerBlock(decoding.PlainNumbers(table, DType.uint8), grid)
    blocks = decoding.Microscaled(codes, exponents, has_nan) if axis else None
    return decoding.Decoding(stored.shape, values, microscaled=blocks)


SCHEME = Scheme(
    label="MXFP4", names=MICROSCALED_NAMES, infer=_infer, decode=decode, cut=cut_microscaled
)


def _encode(shape: tuple[int, ...], _: SchemeOptions, __: Encoding) -> WeightEncoding:
    rows, columns = shape
    blocks = columns // MXFP_BLOCK
    return encoding.WeightEncoding(
        parts=(
            encoding.StoredPart(".weight_packed", (rows, columns // 2), "U8", unit=columns // 2),
            encoding.StoredPart(".weight_scale", (rows, blocks), "U8", unit=blocks),
        ),
        rows=rows, columns=columns, rounding=encoding.Microscaled4(MXFP_BLOCK), pack=pack,
    )  # fmt: skip


def pack(made: Codes, _peak: np.float32) -> tuple[U8, U8]:
    """Return the bytes of codes, in pairs, and of the exponents of their scales."""
    return encoding.pack_rows(made.codes, 4), made.scales


def _describe(_: SchemeOptions, ignored: Sequence[str]) -> dict[str, Any]:
    weights = {
        "num_bits": 4, "type": "float", "symmetric": True, "strategy": "group",
        "group_size": MXFP_BLOCK, "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8",
    }  # fmt: skip
    return describe_compressed("mxfp4-pack-quantized", weights, None, ignored)


MXFP4 = WrittenScheme(
    name="MXFP4",
    summary="4-bit floats (E2M1), with a power-of-two scale per 32 elements",
    encode=_encode,
    settings=_describe,
    refuse=refuse_groups,
    defaults=SchemeOptions(group=MXFP_BLOCK),
    variants={"gpt_oss": "weightctl.schemes.gpt_oss:MXFP4_EXPERTS"},
)
