"""NVFP4: 4-bit floats, with an FP8 scale per 16 elements and an optional tensor scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.schemes import decoding
from weightctl.schemes.microscaled import (
    MICROSCALED_NAMES,
    NVFP_BLOCK,
    cut_microscaled,
    infer_nvfp,
    make_block_grid,
    read_float_codes,
)
from weightctl.schemes.scheme import Scheme, align_counts

if TYPE_CHECKING:
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.scheme import Candidate, LogicalWeight

__all__ = ["SCHEME"]

_ABOVE = ("weight_scale_2", ".weight_global_scale")


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
    return decoding.Decoding(shape, values)


SCHEME = Scheme(
    label="NVFP4", names=MICROSCALED_NAMES, infer=_infer, decode=_decode, cut=cut_microscaled
)
