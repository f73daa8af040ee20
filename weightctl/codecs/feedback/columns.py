"""The definition of the kernels for error feedback: the same operations in the same order.

Arrays of columns have shape (t, n, ABREAST): tiles of ABREAST rows, one a lane. Codes are levels,
as float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from weightctl.codecs.base import F32
    from weightctl.codecs.feedback.parts import CodeValues

# The rows of a tile.
ABREAST = 32
# How often scales, and then codes, are fitted.
ROUNDS = 1
# Columns whose changes are applied to the others at a time.
_FED_BACK = 32


class Columns(NamedTuple):
    """Columns in the order of rounding: their values, these after feedback, and their codes."""

    own: F32
    wanted: F32
    codes: F32


class FactoredScales(NamedTuple):
    """What scales and mins are products of, shapes (k, t, blocks or sub-blocks, ABREAST)."""

    of_blocks: F32
    of_groups: F32

    def multiply(self, first: int, stop: int, grid: CodeValues) -> F32:
        """Return the scales and mins of the columns from `first` to `stop`, (2, t, c, ABREAST)."""
        columns = np.arange(first, stop)
        made = (
            self.of_groups[:, :, columns // grid.shared]
            * self.of_blocks[:, :, columns // grid.block]
        )
        return made if grid.has_mins else np.concatenate([made, np.zeros_like(made)])


def factor_hessian(matrix: F32) -> None:
    """Replace the lower triangle of a symmetric matrix by the `L` of `L^T D L`, and its diagonal.

    The diagonal has the pivots.
    """
    for j in range(len(matrix) - 1, -1, -1):
        row = matrix[j, :j] / matrix[j, j]
        matrix[:j, :j] -= matrix[j, :j, None] * row
        matrix[j, :j] = row


def _choose_codes(values: F32, scales: F32, lows: F32, grid: CodeValues, otherwise: F32) -> F32:
    """Return the codes of the nearest levels; `otherwise` where the scale is 0."""
    quotients = (values + lows) / scales
    if grid.levels is None:
        rounded = np.rint(quotients)
        # The least code for NaN, too.
        codes = np.minimum(np.where(rounded >= grid.least, rounded, grid.least), grid.most)
    else:
        midpoints = (grid.levels[1:] + grid.levels[:-1]) / 2
        codes = np.full_like(quotients, grid.levels[-1])
        for midpoint, level in zip(midpoints[::-1], grid.levels[-2::-1], strict=True):
            codes[quotients < midpoint] = level
    return np.where(scales == 0, otherwise, codes).astype(np.float32)


def round_columns(factor: F32, first: int, columns: Columns, scales: F32, grid: CodeValues) -> None:
    """Choose the codes of the block from column `first` on, and pass on their errors."""
    own, wanted, codes = columns
    # A code for scales of 0, of which any would do.
    otherwise = np.full_like(own[:, 0], 0 if grid.levels is None else 1)
    for j in range(first, first + grid.block):
        scale, low = scales[:, :, j - first]
        codes[:, j] = _choose_codes(wanted[:, j], scale, low, grid, otherwise)
        error = own[:, j] - (codes[:, j] * scale - low)
        wanted[:, j + 1 :] += factor[j + 1 :, j, None] * error[:, None]


def refine_codes(
    hessian: F32, own: F32, codes: F32, scales: FactoredScales, grid: CodeValues
) -> None:
    """Fit the scales to the codes, and the codes to the scales, in turn."""
    of_columns, lows = scales.multiply(0, own.shape[1], grid)
    # The product of the Hessian with what is left of the values.
    rest = np.zeros_like(own)
    _pass_on(hessian, slice(None), codes * of_columns - lows - own, rest)
    for _ in range(ROUNDS):
        if not grid.is_fixed:
            _refit_scales(hessian, codes, rest, scales, grid)
        _descend_codes(hessian, codes, rest, scales, grid)


def _pass_on(hessian: F32, part: slice, changes: F32, rest: F32) -> None:
    """Subtract the products of some columns of the Hessian with changes, one column at a time."""
    for column, change in zip(hessian[:, part].T, changes.transpose(1, 0, 2), strict=True):
        rest -= column[:, None] * change[:, None]


def _refit_scales(
    hessian: F32, codes: F32, rest: F32, scales: FactoredScales, grid: CodeValues
) -> None:
    of_blocks, of_groups = scales
    factors, halves = grid.factors, (-np.inf, np.inf)
    limits = (halves, halves) if factors is None else (factors, factors)
    for first in range(0, codes.shape[1], grid.block):
        block = of_blocks[:, :, first // grid.block]
        if factors is not None:
            groups = slice(first // grid.shared, (first + grid.block) // grid.shared)
            slopes = np.repeat(of_groups[:, :, groups], grid.shared, 2)
            whole = slice(first, first + grid.block)
            slopes[0] *= codes[:, whole]
            _fit_factors(
                (hessian, whole), slopes, block, (halves, (0, np.inf)), rest, are_halves=True
            )
        for start in range(first, first + grid.block, grid.shared):
            part = slice(start, start + grid.shared)
            slopes = np.repeat(block[:, :, None], grid.shared, 2)
            slopes[0] *= codes[:, part]
            of_group = of_groups[:, :, start // grid.shared]
            _fit_factors(
                (hessian, part), slopes, of_group, limits, rest, are_halves=factors is None
            )


def _fit_factors(
    columns: tuple[F32, slice],
    slopes: F32,
    factors: F32,
    limits: tuple[tuple[float, float], tuple[float, float]],
    rest: F32,
    *,
    are_halves: bool,
) -> None:
    """Fit a factor of the scale of some columns of a Hessian, and then one of their min.

    `slopes` are the derivatives of the values; that of a min has the sign that it is stored with.
    """
    hessian, part = columns
    left, changes = rest[:, part].copy(), np.zeros_like(rest[:, part])
    own = hessian[part, part]
    for kind, slope in enumerate((slopes[0], *(-each for each in slopes[1:]))):
        product = np.zeros_like(slope)
        _pass_on(own, slice(None), -slope, product)
        gain, cost = (_add_in_order(slope * each) for each in (left, product))
        before = factors[kind].copy()
        made = before + np.where(cost > 0, gain / cost, np.float32(0)).astype(np.float32)
        made = made.astype(np.float16).astype(np.float32) if are_halves else np.rint(made)
        least, most = map(np.float32, limits[kind])
        made = np.where(made < least, least, np.where(made > most, most, made))
        factors[kind] = np.where(np.isfinite(made), made, before)
        change = slope * (factors[kind] - before)[:, None]
        _pass_on(own, slice(None), change, left)
        changes = changes + change if kind else change
    _pass_on(hessian, part, changes, rest)


def _add_in_order(columns: F32) -> F32:
    """Return the sums over columns; that of negative zeros is 0, as it is for the kernels."""
    found: F32 = np.add.accumulate(columns, axis=1)[:, -1] + np.float32(0)
    return found


def _descend_codes(
    hessian: F32, codes: F32, rest: F32, scales: FactoredScales, grid: CodeValues
) -> None:
    """Choose the best code of each column, one after another."""
    n = codes.shape[1]
    of_columns, lows = scales.multiply(0, n, grid)
    for start in range(0, n, _FED_BACK):
        part = slice(start, start + _FED_BACK)
        left, own = rest[:, part].copy(), hessian[part, part]
        changes = np.empty_like(left)
        for place in range(_FED_BACK):
            column = start + place
            scale, low = of_columns[:, column], lows[:, column]
            before = codes[:, column] * scale - low
            wanted = before + left[:, place] / own[place, place]
            code = _choose_codes(wanted, scale, low, grid, codes[:, column])
            changes[:, place] = code * scale - low - before
            codes[:, column] = code
            _pass_on(own, slice(place, place + 1), changes[:, place, None], left)
        _pass_on(hessian, part, changes, rest)
