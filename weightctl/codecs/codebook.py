"""The sixteen uneven levels of IQ4_NL and IQ4_XS, and the search for the scale that suits them.

Arrays of the search have shape (32, lanes), a block of 32 numbers in each lane, and each lane does
ggml's float32 operations in ggml's order, as in `search`. Callers ignore floating point warnings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.search import NEGLIGIBLE, first_peak

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

__all__ = ["fit_scale", "importance_weights", "nearest", "packed", "unpacked"]

# ggml's `kvalues_iq4nl`.
_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
_VALUES = _LEVELS.astype(np.float32)
_MIDPOINTS = (_VALUES[1:] + _VALUES[:-1]) / 2


def nearest(values: F32) -> U8:
    """Return which levels are nearest to values, the upper of two as near; 15 for NaN."""
    level = np.full(values.shape, 15, np.uint8)
    for midpoint in _MIDPOINTS:
        level -= values < midpoint
    return level


def fit_scale(x: F32, weights: F32) -> F32:
    """Return, for each lane, the scale such that `x` is near to the scale times levels.

    Tries the peak at 127, then at -134, -133 ... -120, fits a scale to the levels of each trial by
    weighted least squares, and takes that of the least error. The scale of a lane of negligible
    numbers is 0. Mirrors the search in ggml's `quantize_row_iq4_nl_impl`.
    """
    peak = first_peak(x)
    inverse: F32 = np.float32(1) / (peak / np.float32(127))
    sum_vx, sum_v2 = _correlated(x, weights, inverse)
    scale = np.where(sum_v2 > 0, sum_vx / sum_v2, np.float32(0))
    best = scale * sum_vx
    for i in range(-7, 8):
        sum_vx, sum_v2 = _correlated(x, weights, np.float32(i - 127) / peak)
        better = (sum_v2 > 0) & (sum_vx * sum_vx > best * sum_v2)
        scale = np.where(better, sum_vx / sum_v2, scale)
        best = np.where(better, scale * sum_vx, best)
    scale[np.abs(peak) < NEGLIGIBLE] = 0
    return scale


def _correlated(x: F32, weights: F32, inverse: F32) -> tuple[F32, F32]:
    """Return the weighted sums of value times `x`, and of values squared, added first to last.

    A value is that of the level nearest to `x * inverse`.
    """
    values = _VALUES[nearest(x * inverse)]
    sum_vx: F32 = np.zeros(inverse.shape, np.float32)
    sum_v2 = sum_vx.copy()
    for number, weight, value in zip(x, weights, values, strict=True):
        weighted = weight * value
        sum_vx += weighted * number
        sum_v2 += weighted * value
    return sum_vx, sum_v2


def importance_weights(x: F32, importance: F32) -> F32:
    """Return ggml's weights of blocks, shape (..., n), from the importance of each number."""
    total = np.add.accumulate(x * x, axis=-1)[..., -1:]
    variance: F32 = total * np.float32(2 / x.shape[-1])
    return importance * np.sqrt(variance + x * x)


def packed(level: U8) -> U8:
    """Return the bytes (..., 16) of levels (..., 32): byte i has levels i and, high, i + 16."""
    both: U8 = level[..., :16] | level[..., 16:] << np.uint8(4)
    return both


def unpacked(q: U8) -> NDArray[np.int8]:
    """Return the levels' values (..., 32) from bytes (..., 16)."""
    return np.take(_LEVELS, np.concatenate([q & np.uint8(15), q >> np.uint8(4)], axis=-1))
