"""What MXFP4 and NVFP4 share: numbers as 4-bit floats (E2M1) times a scale.

A code is a sign bit above the three bits of 0, 0.5, 1, 1.5, 2, 3, 4 or 6. As in ggml, values are
counted in halves here, 0 to 12, and scales are half of what they are called elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8

__all__ = ["decoded", "nearest", "packed"]

_MAGNITUDES = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.float32)
# ggml's `kvalues_mxfp4`, as integers: a code of -0 gives 0, not -0.
_VALUES = np.concatenate([_MAGNITUDES, -_MAGNITUDES]).astype(np.int8)


def nearest(x: F32, scale: F32) -> U8:
    """Return the codes nearest to `x / scale`, shape (..., n), for scales (...).

    Of two as near it is the lesser magnitude, as float32 has their distances: for numbers that are
    a million times the greatest value it is zero. Zero has no sign.
    """
    magnitude = np.abs(x)
    code = np.zeros(x.shape, np.uint8)
    least = magnitude.copy()
    for i, value in enumerate(_MAGNITUDES[1:], start=1):
        distance = np.abs(value * scale[..., None] - magnitude)
        nearer = distance < least
        np.copyto(code, np.uint8(i), where=nearer)
        np.copyto(least, distance, where=nearer)
    code[(x < 0) & (code > 0)] |= 8
    return code


def packed(code: U8) -> U8:
    """Return the bytes (..., n / 2) of codes (..., n): byte i has codes i and, high, i + n / 2."""
    half = code.shape[-1] // 2
    both: U8 = code[..., :half] | code[..., half:] << np.uint8(4)
    return both


def decoded(q: U8, scale: F32, out: F32) -> None:
    """Fill `out`, shape (..., 2 * n), with the values of bytes (..., n) at scales (...)."""
    code = np.concatenate([q & np.uint8(15), q >> np.uint8(4)], axis=-1)
    np.multiply(np.take(_VALUES, code), scale[..., None], out=out, dtype=np.float32)
