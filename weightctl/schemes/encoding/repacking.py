"""Repacking of ggml's blocks as codes and scales of schemes, without changing a value.

It is the inverse of `decoding.blocks`. Scales of integers are float16, as in the blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightctl.codecs.affine import Q4_1
from weightctl.codecs.e2m1 import MXFP4, NVFP4
from weightctl.codecs.nibbles import unpack_pairs
from weightctl.codecs.q8_0 import Q8_0
from weightctl.codecs.symmetric import Q4_0
from weightctl.schemes.encoding.floats import Microscaled4
from weightctl.schemes.encoding.integers import Affine, Biased, Symmetric
from weightctl.schemes.encoding.rounding import Codes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import U8
    from weightctl.dtype import Encoding
    from weightctl.schemes.encoding.rounding import Rounding

__all__ = ["can_repack", "repack"]

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


def can_repack(encoding: Encoding, rounding: Rounding) -> bool:
    """Whether the codes and scales of a rounding hold the values of any block of an encoding.

    If the scale of a block of integers exceeds 511, the minimum of the group can exceed float16;
    such a weight is refused when it is read.
    """
    name = encoding.name
    match rounding:
        case Symmetric(bits=bits, columns=32, stored="F16"):
            return _SYMMETRIC.get(name) == bits
        case Affine(bits=bits, columns=32, stored="F16"):
            return _SYMMETRIC.get(name) == bits
        case Biased(bits=bits, columns=32, stored="F16"):
            return (_SYMMETRIC | _WITH_MINS).get(name) == bits
        case Microscaled4(is_nvidia=is_nvidia):
            return name == ("NVFP4" if is_nvidia else "MXFP4")
        case _:
            return False


def repack(raw: U8, encoding: Encoding, rounding: Rounding) -> Codes:
    """Return the codes and scales of blocks, shape (rows, bytes); the encoding `can_repack`.

    NVIDIA's scales are relative to a scale of 1 for the whole weight.
    """
    blocks = raw.view(_BLOCKS[encoding.name])
    if not isinstance(rounding, Symmetric | Affine | Biased):
        return _repack_floats(blocks)
    codes = _read_codes(blocks)
    scales: NDArray[np.float16] = np.ascontiguousarray(blocks["scale"])
    middle = 1 << (rounding.bits - 1)
    if isinstance(rounding, Biased):
        return Codes(codes, scales.view(np.uint8), _find_mins(blocks, scales, middle))
    zeros = None
    if isinstance(rounding, Affine):
        zeros = np.full(scales.shape, middle, np.uint8)
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
