"""Searches for scales that ggml's block encodings share, one block per lane.

Arrays have shape (n, lanes): row `i` holds element `i` of every block. Each lane does ggml's
float32 operations in ggml's order (sums run over the rows from first to last, no fused
multiply-add), so that levels and scales equal ggml's to the last bit; processing many lanes at once
makes it fast. Callers ignore floating-point warnings: blocks of zeros or of huge values are
processed too, and infinities in a lane give the same result as in ggml.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

# In a float32 between 2**23 and 2**24 the last bit of the mantissa is worth 1. Adding this value
# therefore rounds to an integer (half to even) and leaves that integer, plus _HALF, in the
# mantissa.
_ROUNDER = np.float32(1.5 * 2**23)
_MANTISSA = np.int32(2**23 - 1)
_HALF = np.int32(2**22)
_EXPONENT = np.float32(2**23).view(np.int32)

# A block whose magnitudes are all below this counts as zero: ggml's GROUP_MAX_EPS.
NEGLIGIBLE = np.float32(1e-15)


def nearest_int(values: F32) -> NDArray[np.int32]:
    """Return the nearest integers, half to even, as ggml's `nearest_int` does.

    Beyond 2**22, and for NaN, the result is whatever the mantissa contains, as in ggml.
    """
    bits = (values + _ROUNDER).view(np.int32)
    bits &= _MANTISSA
    bits -= _HALF
    return bits


def clamp_levels(values: F32, least: int, most: int) -> F32:
    """Round `values` in place as `nearest_int` does, clamp them, and return them.

    The limits are `least` and `most`. The levels stay in float32, as the sums over them need: the
    integers in the mantissas are clamped, and become floats again when the exponent is restored.
    """
    values += _ROUNDER
    bits = values.view(np.int32)
    bits &= _MANTISSA
    np.clip(bits, _HALF + np.int32(least), _HALF + np.int32(most), out=bits)
    bits |= _EXPONENT
    values -= _ROUNDER
    return values


def sum_of_squares(rows: F32) -> F32:
    """Return the sum of squares of each row of (r, n), added from left to right, shape (r,)."""
    # `accumulate` is sequential by definition, where `sum` adds in pairs.
    return np.add.accumulate(rows * rows, axis=1)[:, -1]


def _total(terms: F32) -> F32:
    """Return the sum over the first axis, added from first to last."""
    total = np.zeros(terms.shape[1:], np.float32)
    for term in terms:
        total += term
    return total


def first_peak(x: F32) -> F32:
    """Return the first value of largest magnitude in each lane; NaN counts as 0."""
    peak = np.zeros(x.shape[1:], np.float32)
    greatest = np.zeros(x.shape[1:], np.float32)
    for row in x:
        magnitude = np.abs(row)
        greater = magnitude > greatest
        np.copyto(peak, row, where=greater)
        np.copyto(greatest, magnitude, where=greater)
    return peak


def _extremes(x: F32) -> tuple[F32, F32]:
    """Return the first minimum and the first maximum of each lane, compared with `<` and `>`."""
    low, high = x[0].copy(), x[0].copy()
    for row in x[1:]:
        np.copyto(low, row, where=row < low)
        np.copyto(high, row, where=row > high)
    return low, high


def fit_scale_and_min(
    x: F32,
    weights: F32,
    most: int,
    *,
    first: float,
    step: float,
    steps: int,
    saturate: bool,
    magnitudes: bool = False,
) -> tuple[F32, F32, F32]:
    """Find levels 0..`most`, a scale and a min >= 0 such that `x` is near `scale * level - min`.

    Returns levels of the shape of `x`, (n, lanes), and the scale and min of each lane. Tries the
    inverse scales `(first + step * i + most) / range` for i in 0..`steps`, fits scale and min to
    the levels of each by weighted least squares, and keeps the fit with the least weighted error:
    of squares, or of magnitudes with `magnitudes` (ggml's `use_mad`). Mirrors ggml's
    `make_qkx2_quants` and, with `saturate`, its `make_qkx3_quants`. They differ if a range near 0
    gives quotients beyond any integer type: the former uses the result of `nearest_int`, the latter
    the nearest level, or 0 for NaN.
    """
    low, high = _extremes(x)
    sum_w, sum_x = _total(weights), _total(weights * x)
    np.copyto(low, np.float32(0), where=low > 0)

    # If all values are equal, this is infinite, and the scale and all levels are 0.
    inverse = np.float32(most) / (high - low)
    scale = np.float32(1) / inverse
    levels, work = np.empty_like(x), np.empty_like(x)
    terms = np.empty((len(x), 3, *low.shape), np.float32)

    def choose_levels(inverse: F32, low: F32) -> None:
        np.subtract(x, low, out=levels)
        np.multiply(levels, inverse, out=levels)
        if saturate:
            np.clip(levels, 0, most, out=levels)
        clamp_levels(levels, 0, most)

    def measure_error(scale: F32, low: F32) -> F32:
        np.multiply(levels, scale, out=work)
        np.add(work, low, out=work)
        np.subtract(work, x, out=work)
        if magnitudes:
            np.abs(work, out=work)
        else:
            np.multiply(work, work, out=work)
        np.multiply(work, weights, out=work)
        return _total(work)

    choose_levels(inverse, low)
    least_error = measure_error(scale, low)
    # The levels of the best trial are computed again at the end. Levels from before the first
    # trial do not saturate: they are all 0 if the inverse is infinite.
    best_inverse = np.where(np.isinf(inverse), np.float32(0), inverse)
    best_low = low
    for i in range(steps + 1):
        numerator = np.float32(first) + np.float32(step) * np.float32(i) + np.float32(most)
        # `low` is the best so far and `high` is constant: ggml's range changes during its search.
        inverse = numerator / (high - low)
        choose_levels(inverse, low)
        weighted = np.multiply(weights, levels, out=terms[:, 0])
        np.multiply(weighted, levels, out=terms[:, 1])
        np.multiply(weighted, x, out=terms[:, 2])
        sum_l, sum_l2, sum_xl = _total(terms)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        positive = new_low > 0
        np.copyto(new_scale, sum_xl / sum_l2, where=positive)
        np.copyto(new_low, np.float32(0), where=positive)
        error = measure_error(new_scale, new_low)
        better = (determinant > 0) & (error < least_error)
        least_error = np.where(better, error, least_error)
        best_inverse = np.where(better, inverse, best_inverse)
        best_low = np.where(better, low, best_low)
        scale = np.where(better, new_scale, scale)
        low = np.where(better, new_low, low)

    choose_levels(best_inverse, best_low)
    return levels, scale, -low


def fit_scale(x: F32, weights: F32, half: int) -> tuple[F32, F32]:
    """Find levels -`half`..`half - 1` and a scale such that `x` is near `scale * level`.

    Returns the levels plus `half`, shape (n, lanes), and the scale of each lane; for a lane of
    negligible values, all levels returned are 0 (not `half`), and the scale is 0. Tries 19 scales
    around the one that puts the value of largest magnitude at -`half`. Mirrors ggml's
    `make_qx_quants` with `rmse_type` 1 and weights (where ggml has none, they are `x * x`).
    """
    peak = first_peak(x)
    negligible = np.abs(peak) < NEGLIGIBLE
    weighted = weights * x
    levels = np.empty_like(x)
    terms = np.empty((len(x), 2, *peak.shape), np.float32)

    def choose_levels(inverse: F32) -> None:
        np.multiply(x, inverse, out=levels)
        clamp_levels(levels, -half, half - 1)

    def correlate() -> tuple[F32, F32]:
        np.multiply(weighted, levels, out=terms[:, 0])
        squares = np.multiply(weights, levels, out=terms[:, 1])
        squares *= levels
        sum_lx, sum_l2 = _total(terms)
        return sum_lx, sum_l2

    best_inverse: F32 = np.float32(-half) / peak
    choose_levels(best_inverse)
    sum_lx, sum_l2 = correlate()
    scale = np.where(sum_l2 != 0, sum_lx / sum_l2, np.float32(0))
    best = scale * sum_lx
    for i in (*range(-9, 0), *range(1, 10)):
        inverse = -(np.float32(half) + np.float32(0.1) * np.float32(i)) / peak
        choose_levels(inverse)
        sum_lx, sum_l2 = correlate()
        better = (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2)
        best_inverse = np.where(better, inverse, best_inverse)
        scale = np.where(better, sum_lx / sum_l2, scale)
        best = np.where(better, scale * sum_lx, best)

    choose_levels(best_inverse)
    levels += np.float32(half)
    levels[:, negligible] = 0
    scale[negligible] = 0
    return levels, scale


def fit_unsigned_scale(x: F32, weights: F32, most: int) -> tuple[U8, F32]:
    """Find levels 0..`most` and a scale such that `x` >= 0 is near `scale * level`.

    Returns levels of the shape of `x`, (n, lanes), and the scale of each lane. Takes the best of
    nine scales, then changes single levels if that raises the correlation, in five passes. Mirrors
    ggml's `make_qp_quants`; for negative `x`, a level wraps around like a byte.
    """
    peak = np.zeros(x.shape[1:], np.float32)
    for row in x:
        # Not `row > peak`: a NaN counts as greater, and so does the value after it.
        np.copyto(peak, row, where=~(peak > row))
    negligible = peak < NEGLIGIBLE

    def measure_error(levels: F32, inverse: F32) -> F32:
        scale: F32 = np.float32(1) / inverse
        difference: F32 = np.subtract(x, scale * levels)
        return _total(weights * difference * difference)

    best_inverse: F32 = np.float32(most) / peak
    levels = nearest_int(best_inverse * x).astype(np.uint8)
    least_error = measure_error(levels.astype(np.float32), best_inverse)
    for i in (*range(-4, 0), *range(1, 5)):
        inverse = (np.float32(0.1) * np.float32(i) + np.float32(most)) / peak
        whole = np.minimum(nearest_int(inverse * x), most)
        error = measure_error(whole.astype(np.float32), inverse)
        better = error < least_error
        least_error = np.where(better, error, least_error)
        best_inverse = np.where(better, inverse, best_inverse)

    whole = np.minimum(nearest_int(best_inverse * x), most)
    weighted = weights * x
    new = whole.astype(np.float32)
    sum_lx, sum_l2 = _total(weighted * new), _total(weights * new * new)
    levels = whole.astype(np.uint8)
    for _ in range(5):
        for i, level in enumerate(levels):
            old = level.astype(np.float32)
            rest_lx = sum_lx - weighted[i] * old
            rest_l2 = sum_l2 - weights[i] * old * old
            whole = np.minimum(nearest_int(x[i] * rest_l2 / rest_lx), most)
            new = whole.astype(np.float32)
            new_lx = rest_lx + weighted[i] * new
            new_l2 = rest_l2 + weights[i] * new * new
            better = (rest_lx > 0) & (rest_l2 > 0) & (whole != level)
            better &= new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2
            np.copyto(level, whole.astype(np.uint8), where=better)
            np.copyto(sum_lx, new_lx, where=better)
            np.copyto(sum_l2, new_l2, where=better)

    scale = np.where(sum_l2 > 0, sum_lx / sum_l2, np.float32(0))
    levels[:, negligible] = 0
    scale[negligible] = 0
    return levels, scale
