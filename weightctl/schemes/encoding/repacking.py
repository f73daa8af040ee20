"""Repacking of ggml's blocks as codes and scales of schemes, without changing a value.

It is the inverse of `decoding.blocks`. Scales of integers are float16, as in the blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from weightctl.codecs.affine import Q4_1
from weightctl.codecs.e2m1 import MXFP4, NVFP4
from weightctl.codecs.nibbles import unpack_pairs
from weightctl.codecs.q8_0 import Q8_0
from weightctl.codecs.symmetric import Q4_0
from weightctl.schemes.encoding.floats import Microscaled4
from weightctl.schemes.encoding.integers import Affine, Biased, Symmetric
from weightctl.schemes.encoding.rounding import Codes
from weightctl.weights.steps.numbers import read_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding
    from weightctl.schemes.encoding.rounding import Rounding
    from weightctl.weights.derived import ReadableTensor

    _Integers: TypeAlias = Symmetric | Affine | Biased

_BLOCKS = {
    "Q4_0": Q4_0.block_dtype,
    "Q4_1": Q4_1.block_dtype,
    "Q8_0": Q8_0.block_dtype,
    "MXFP4": MXFP4.block_dtype,
    "NVFP4": NVFP4.block_dtype,
}
# The width of integers whose middle is 0, and of integers with a minimum.
_SYMMETRIC = {"Q4_0": 4, "Q8_0": 8}
_WITH_MINS = {"Q4_1": 4}
_INTEGERS = (Symmetric, Affine, Biased)
# The number of values whose blocks are read at a time.
_RUN = 1 << 20


def can_repack(tensor: ReadableTensor, rounding: Rounding) -> bool:
    """Whether the codes and scales of a rounding hold the values of a tensor's blocks.

    For some pairs of encodings and roundings this depends on the scales and minima: blocks are read
    until one of them does not fit. If the scale of a block of integers exceeds 511, the minimum of
    the group can exceed float16; such a weight is refused when it is read.
    """
    name = tensor.info.encoding.name
    if isinstance(rounding, Microscaled4):
        return name == ("NVFP4" if rounding.is_nvidia else "MXFP4")
    if not isinstance(rounding, _INTEGERS) or rounding.stored != "F16":
        return False
    if rounding.columns % 32 or (_SYMMETRIC | _WITH_MINS).get(name) != rounding.bits:
        return False
    if rounding.columns == 32 and (name in _SYMMETRIC or isinstance(rounding, Biased)):
        return True
    return _fits_all(tensor, rounding)


def _fits_all(tensor: ReadableTensor, rounding: _Integers) -> bool:
    """Whether the blocks of each group have one scale and minimum, which the rounding can hold."""
    info = tensor.info
    count = rounding.columns // 32
    step = max(1, _RUN // info.row) * info.row
    for first in range(0, info.size, step):
        raw = read_blocks(tensor, first, min(step, info.size - first))
        groups = raw.view(_BLOCKS[info.encoding.name]).reshape(-1, count)
        for key in {"scale", "min"}.intersection(groups.dtype.names or ()):
            bits = groups[key].view(np.uint16)
            if not bool((bits == bits[:, :1]).all()):
                return False
        if info.encoding.name in _WITH_MINS and not isinstance(rounding, Biased):
            scales, mins = (groups[key][:, :1].astype(np.float32) for key in ("scale", "min"))
            zeros = _find_zeros(scales, mins)
            if isinstance(rounding, Symmetric):
                zeros[:] = 8
            # The products are exact.
            if not np.array_equal(-(scales * zeros.astype(np.float32)), mins):
                return False
    return True


def _find_zeros(scales: F32, mins: F32) -> U8:
    """Return the zero points from 0 to 15 that are nearest to those of scales and minima."""
    with np.errstate(all="ignore"):
        zeros = np.nan_to_num(np.rint(-mins / scales), nan=0, posinf=0, neginf=0)
    made: U8 = np.clip(zeros, 0, 15).astype(np.uint8)
    return made


def repack(raw: U8, encoding: Encoding, rounding: Rounding) -> Codes:
    """Return the codes and scales of blocks, shape (rows, bytes), which the rounding can hold.

    NVIDIA's scales are relative to a scale of 1 for the whole weight.
    """
    blocks = raw.view(_BLOCKS[encoding.name])
    if not isinstance(rounding, _INTEGERS):
        return _repack_floats(blocks)
    codes = _read_codes(blocks)
    firsts = blocks[:, :: rounding.columns // 32]
    scales: NDArray[np.float16] = np.ascontiguousarray(firsts["scale"])
    middle = 1 << (rounding.bits - 1)
    if isinstance(rounding, Biased):
        return Codes(codes, scales.view(np.uint8), _find_mins(firsts, scales, middle))
    zeros = None
    if isinstance(rounding, Affine):
        zeros = np.full(scales.shape, middle, np.uint8)
        if encoding.name in _WITH_MINS:
            zeros = _find_zeros(scales.astype(np.float32), firsts["min"].astype(np.float32))
    return Codes(codes, scales.view(np.uint8), zeros)


def _read_codes(blocks: NDArray[Any]) -> U8:
    """Return the integers of blocks, shape (rows, values), as numbers that are not negative."""
    if "q" in (blocks.dtype.names or ()):
        codes: U8 = blocks["q"].view(np.uint8) ^ np.uint8(128)
    else:
        codes = unpack_pairs(blocks["low"])
    return codes.reshape(len(blocks), -1)


def _find_mins(blocks: NDArray[Any], scales: NDArray[np.float16], middle: int) -> U8:
    """Return the value of the integer 0 in each block, as the bytes of float16."""
    if "min" in (blocks.dtype.names or ()):
        return np.ascontiguousarray(blocks["min"]).view(np.uint8)
    # A power of two changes only the exponent.
    with np.errstate(over="ignore"):
        return (scales * np.float16(-middle)).view(np.uint8)


def _repack_floats(blocks: NDArray[Any]) -> Codes:
    codes = unpack_pairs(blocks["q"]).reshape(len(blocks), -1)
    if "exponent" in (blocks.dtype.names or ()):
        return Codes(codes, np.ascontiguousarray(blocks["exponent"]))
    # ggml ignores the sign of a scale, and reads NaN as 0.
    scales = blocks["scales"].reshape(len(blocks), -1) & np.uint8(0x7F)
    scales[scales == 0x7F] = 0
    return Codes(codes, scales)
