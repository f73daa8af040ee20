"""MXFP4 and NVFP4: values as 4-bit floats (E2M1) times a scale.

A code is a sign bit above a three-bit code for 0, 0.5, 1, 1.5, 2, 3, 4 or 6. As in ggml, values are
counted in halves here, 0 to 12, and scales are half of their usual value.

MXFP4 has 32 values times one power of two (E8M0). If all magnitudes are below 2**-125, the exponent
is 0, the smallest. ggml has no defined result there: it converts a negative number to a byte, and
writes exponents such as 255, which is NaN.

NVFP4 has 64 values in four sub-blocks with 8-bit scales (E4M3, unsigned). ggml's blocks have no
scale for the whole tensor: values beyond 2688 (6 times 448) become 2688. Values that are millions
of times as large become zeros, because float32 cannot distinguish the distances to 0 and 2688. The
values of a sub-block also become zeros if all magnitudes are below 6 / 1024.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.base import BlockCodec
from weightctl.codecs.nibbles import pack_pairs, unpack_pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

_MAGNITUDES = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.float32)
# ggml's `kvalues_mxfp4`, as integers: a code of -0 gives 0, not -0.
E2M1_VALUES = np.concatenate([_MAGNITUDES, -_MAGNITUDES]).astype(np.int8)
# A peak of zero has the least exponent, as this one has; C libraries differ in the logarithm of 0.
_LEAST_PEAK = 2.0**-149
# Values that are processed at a time.
_AREA = 1 << 15


def _find_nearest(x: F32, scale: F32) -> U8:
    """Return the codes nearest to `x / scale`, shape (..., n), for scales (...).

    Of two equally near codes, the one with the smaller magnitude is used. Distances are computed in
    float32, so numbers that are a million times the largest value become zero. Zero has no sign.
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


def _restore(q: U8, scale: F32, out: F32) -> None:
    """Fill `out`, shape (..., 2 * n), with the values of bytes (..., n) at scales (...)."""
    np.multiply(np.take(E2M1_VALUES, unpack_pairs(q)), scale[..., None], out=out, dtype=np.float32)


def _encode_mx(x: F32, importance: F32 | None, block: NDArray[np.void]) -> None:  # noqa: ARG001
    """Fill blocks of MXFP4; as in ggml's `quantize_mxfp4`, `importance` has no effect."""
    exponent = _choose_exponents(np.maximum(x.max(axis=2), -x.min(axis=2)))
    block["exponent"] = exponent
    block["q"] = pack_pairs(_find_nearest(x, half_powers(exponent)))


def _choose_exponents(peak: F32) -> U8:
    """Return E8M0 exponents that scale the peak to 4 to 8; the largest value of E2M1 is 6."""
    # ggml takes the floor of a float32: just below a power of two, that is rounded up first.
    logarithm = np.log2(np.maximum(peak, _LEAST_PEAK, dtype=np.float64)).astype(np.float32)
    return np.clip(np.floor(logarithm) + np.float32(127 - 2), 0, 255).astype(np.uint8)


def half_powers(exponent: U8) -> F32:
    """Return half of the values of E8M0 exponents; as in ggml, 255 is not NaN."""
    return np.ldexp(np.float32(1), exponent.astype(np.int32) - 128)


def _decode_mx(block: NDArray[np.void], out: F32) -> None:
    _restore(block["q"], half_powers(block["exponent"]), out)


def _encode_nv(x: F32, importance: F32 | None, block: NDArray[np.void]) -> None:  # noqa: ARG001
    """Fill blocks of NVFP4; as in ggml's `quantize_nvfp4`, `importance` has no effect."""
    sub_blocks = x.reshape(*block.shape, 4, 16)
    peak: F32 = np.maximum(sub_blocks.max(axis=3), -sub_blocks.min(axis=3))
    scales = _round_scales(peak / np.float32(6))
    block["scales"] = scales
    block["q"] = pack_pairs(_find_nearest(sub_blocks, half_scales(scales)))


def _round_scales(values: F32) -> U8:
    """Return values >= 0 as E4M3, half rounded up, as ggml's `ggml_fp32_to_ue4m3` does.

    Values of 248 or more become 448, although E4M3 has values between these.
    """
    bits = values.view(np.uint32)
    # The exponent and three bits of the mantissa together, so that rounding up carries over.
    rounded = (bits >> np.uint32(19)) + np.uint32(1) >> np.uint32(1)
    normal = np.minimum(rounded.astype(np.int32) - (127 - 7 << 3), 15 << 3)
    tiny = np.minimum(values * np.float32(512) + np.float32(0.5), np.float32(7)).astype(np.int32)
    stored = np.where(values < np.float32(2.0**-6), tiny, normal)
    stored[stored >= 15 << 3] = 0x7E
    return stored.astype(np.uint8)


def half_scales(scales: U8) -> F32:
    """Return half of the values of unsigned E4M3; the top bit is ignored, and 0x7F is 0."""
    exponent = (scales >> np.uint8(3) & np.uint8(15)).astype(np.int32)
    mantissa = (scales & np.uint8(7)).astype(np.float32)
    normal = np.ldexp(mantissa + np.float32(8), exponent - 11)
    values: F32 = np.where(exponent == 0, mantissa * np.float32(2.0**-10), normal)
    values[scales == 0x7F] = 0
    return values


def _decode_nv(block: NDArray[np.void], out: F32) -> None:
    _restore(block["q"], half_scales(block["scales"]), out.reshape(*block.shape, 4, 16))


# ggml's `block_mxfp4`.
MXFP4 = BlockCodec(
    np.dtype([("exponent", "u1"), ("q", "u1", 16)]), 32, _encode_mx, _decode_mx, _AREA
)
# ggml's `block_nvfp4`.
NVFP4 = BlockCodec(
    np.dtype([("scales", "u1", 4), ("q", "u1", (4, 8))]), 64, _encode_nv, _decode_nv, _AREA
)
