"""IQ4_NL and IQ4_XS: values in 4 bits each, at sixteen uneven levels times a scale.

IQ4_NL has 32 values and one scale; IQ4_XS has 256 values in eight sub-blocks of 32. A sub-block of
IQ4_XS whose scale overflows to NaN, as for values beyond 1e17, becomes zeros, as in ggml.

Arrays of the search have shape (32, lanes), with a block of 32 values in each lane, and each lane
does ggml's float32 operations in ggml's order, as in `scale_search`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.base import BlockCodec
from weightctl.codecs.nibbles import pack_pairs, unpack_pairs
from weightctl.codecs.scale_search import NEGLIGIBLE, first_peak, nearest_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

# ggml's `kvalues_iq4nl`.
IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_LEVELS = np.array(IQ4_LEVELS, np.int8)
_VALUES = _LEVELS.astype(np.float32)
_MIDPOINTS = (_VALUES[1:] + _VALUES[:-1]) / 2


def _find_nearest(values: F32) -> U8:
    """Return the indices of the nearest levels; the upper one in a tie, and 15 for NaN."""
    level = np.full(values.shape, 15, np.uint8)
    for midpoint in _MIDPOINTS:
        level -= values < midpoint
    return level


def _fit_scale(x: F32, weights: F32) -> F32:
    """Return a scale for each lane such that `x` is near the scale times levels.

    Tries the peak at 127, then at -134, -133 ... -120, fits a scale to the levels of each trial by
    weighted least squares, and uses the scale with the least error. The scale of a lane of
    negligible values is 0. Mirrors the search in ggml's `quantize_row_iq4_nl_impl`.
    """
    peak = first_peak(x)
    inverse: F32 = np.float32(1) / (peak / np.float32(127))
    sum_vx, sum_v2 = _correlate(x, weights, inverse)
    scale = np.where(sum_v2 > 0, sum_vx / sum_v2, np.float32(0))
    best = scale * sum_vx
    for i in range(-7, 8):
        sum_vx, sum_v2 = _correlate(x, weights, np.float32(i - 127) / peak)
        better = (sum_v2 > 0) & (sum_vx * sum_vx > best * sum_v2)
        scale = np.where(better, sum_vx / sum_v2, scale)
        best = np.where(better, scale * sum_vx, best)
    scale[np.abs(peak) < NEGLIGIBLE] = 0
    return scale


def _correlate(x: F32, weights: F32, inverse: F32) -> tuple[F32, F32]:
    """Return the weighted sums of level times `x`, and of levels squared, added first to last.

    A level is the one nearest to `x * inverse`.
    """
    values = _VALUES[_find_nearest(x * inverse)]
    sum_vx: F32 = np.zeros(inverse.shape, np.float32)
    sum_v2 = sum_vx.copy()
    for number, weight, value in zip(x, weights, values, strict=True):
        weighted = weight * value
        sum_vx += weighted * number
        sum_v2 += weighted * value
    return sum_vx, sum_v2


def _apply_importance(x: F32, importance: F32 | None) -> F32:
    """Return ggml's weights of blocks, shape (..., n), from the importance of each column."""
    if importance is None:
        return x * x
    total = np.add.accumulate(x * x, axis=-1)[..., -1:]
    variance: F32 = total * np.float32(2 / x.shape[-1])
    return importance * np.sqrt(variance + x * x)


def _invert(scale: F32) -> F32:
    return np.where(scale != 0, 1 / scale, np.float32(0))


def _encode_nl(x: F32, importance: F32 | None, block: NDArray[np.void]) -> None:
    """Fill blocks of IQ4_NL: the bytes of ggml's `quantize_iq4_nl`."""
    lanes = np.ascontiguousarray(x.reshape(-1, 32).T)
    weights = _apply_importance(x, importance)
    scale = _fit_scale(lanes, np.ascontiguousarray(weights.reshape(-1, 32).T))
    level = _find_nearest(lanes * _invert(scale)).T.reshape(x.shape)
    block["scale"] = scale.reshape(block.shape)
    block["q"] = pack_pairs(level)


def _decode_nl(block: NDArray[np.void], out: F32) -> None:
    scale = block["scale"].astype(np.float32)
    np.multiply(_unpack(block["q"]), scale[..., None], out=out, dtype=np.float32)


def _unpack(q: U8) -> NDArray[np.int8]:
    """Return the levels (..., 32) of bytes (..., 16)."""
    return np.take(_LEVELS, unpack_pairs(q))


_HIGH_SHIFTS = np.arange(0, 16, 2, dtype=np.uint16)


def _encode_xs(x: F32, importance: F32 | None, block: NDArray[np.void]) -> None:
    """Fill blocks of IQ4_XS: the bytes of ggml's `quantize_iq4_xs`.

    Lane 8 * i + s is sub-block s of block i.
    """
    lanes = np.ascontiguousarray(x.reshape(-1, 32).T)
    weights = _apply_importance(x, importance)
    fitted = _fit_scale(lanes, np.ascontiguousarray(weights.reshape(-1, 32).T)).reshape(-1, 8)
    scale = -first_peak(fitted.T) / np.float32(32)
    whole = np.clip(nearest_int(_invert(scale)[:, None] * fitted), -32, 31)

    sub_scale = scale[:, None] * whole.astype(np.float32)
    level = _find_nearest(lanes * _invert(sub_scale).reshape(-1))
    made = np.empty(len(scale), block.dtype)
    made["scale"] = scale
    made["q"] = pack_pairs(level.T.reshape(-1, 8, 32))
    pack_scales(whole, made)
    block[...] = made.reshape(block.shape)


def pack_scales(scales: NDArray[np.signedinteger], block: NDArray[np.void]) -> None:
    """Store the integers of the scales, shape (b, 8), in blocks of IQ4_XS, shape (b,)."""
    stored = (scales + 32).astype(np.uint8)
    block["low"] = stored[:, ::2] & 15 | stored[:, 1::2] << 4
    block["high"] = np.bitwise_or.reduce(stored.astype(np.uint16) >> 4 << _HIGH_SHIFTS, axis=1)


def unpack_scales(block: NDArray[np.void]) -> NDArray[np.int8]:
    """Return the integers of the scales of blocks of IQ4_XS, shape (..., 8)."""
    stored = (block["high"][..., None] >> _HIGH_SHIFTS & 3).astype(np.int8) << 4
    stored[..., ::2] |= (block["low"] & 15).view(np.int8)
    stored[..., 1::2] |= (block["low"] >> 4).view(np.int8)
    scales: NDArray[np.int8] = stored - np.int8(32)
    return scales


def _decode_xs(block: NDArray[np.void], out: F32) -> None:
    scale = block["scale"].astype(np.float32)[..., None] * unpack_scales(block)
    values = out.reshape(*block.shape, 8, 32)
    np.multiply(_unpack(block["q"]), scale[..., None], out=values, dtype=np.float32)


# ggml's `block_iq4_nl`.
IQ4_NL = BlockCodec(np.dtype([("scale", "<f2"), ("q", "u1", 16)]), 32, _encode_nl, _decode_nl)
# ggml's `block_iq4_xs`. The scale of a sub-block is stored in 6 bits, plus 32. The low four bits
# are in `low`, two sub-blocks per byte, the even one first; the high two are in `high`, from bit 0.
IQ4_XS = BlockCodec(
    np.dtype([("scale", "<f2"), ("high", "<u2"), ("low", "u1", 4), ("q", "u1", (8, 16))]),
    256,
    _encode_xs,
    _decode_xs,
)
