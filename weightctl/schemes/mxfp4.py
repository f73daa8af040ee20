"""MXFP4: 4-bit floats, with a power-of-two scale per block of 32 elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.schemes import decoding
from weightctl.schemes.microscaled import (
    MICROSCALED_NAMES,
    MXFP_BLOCK,
    cut_microscaled,
    infer_mxfp,
    make_block_grid,
    read_float_codes,
)
from weightctl.schemes.scheme import Scheme

if TYPE_CHECKING:
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.scheme import Candidate, LogicalWeight

__all__ = ["SCHEME", "decode"]


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
