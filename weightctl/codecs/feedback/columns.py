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

    def cut(self, columns: slice, grid: CodeValues) -> FactoredScales:
        """Return those of some columns, as views."""
        blocks, groups = (
            slice(columns.start // each, columns.stop // each) for each in (grid.block, grid.shared)
        )
        return FactoredScales(self.of_blocks[:, :, blocks], self.of_groups[:, :, groups])


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
    """Fit the scales to the codes, and the codes to the scales, in one block after another."""
    n = own.shape[1]
    errors = _find_errors(own, codes, scales.multiply(0, n, grid))
    for _ in range(ROUNDS):
        for first in range(0, n, grid.block):
            block = slice(first, first + grid.block)
            # The product of the Hessian with what is left of the values.
            rest = np.zeros_like(own[:, block])
            _pass_on(hessian[block], slice(None), -errors, rest)
            local = hessian[block, block]
            if not grid.is_fixed:
                _refit_scales(local, codes[:, block], rest, scales.cut(block, grid), grid)
            made = scales.multiply(block.start, block.stop, grid)
            _descend_codes(local, codes[:, block], rest, made, grid)
            errors[:, block] = _find_errors(own[:, block], codes[:, block], made)


def _find_errors(own: F32, codes: F32, scales: F32) -> F32:
    of_columns, lows = scales
    found: F32 = own - (codes * of_columns - lows)
    return found


def _pass_on(hessian: F32, part: slice, changes: F32, rest: F32) -> None:
    """Subtract the products of some columns of the Hessian with changes, one column at a time."""
    for column, change in zip(hessian[:, part].T, changes.transpose(1, 0, 2), strict=True):
        rest -= column[:, None] * change[:, None]


def _refit_scales(
    hessian: F32, codes: F32, rest: F32, scales: FactoredScales, grid: CodeValues
) -> None:
    """Fit the scales of the sub-blocks of a block to its codes, and the mins.

    The float16 of a block with sub-blocks stays as it is: fitting it, too, takes as long as the
    rest, and does not lower the loss.
    """
    least, most = map(np.float32, grid.factors or (-np.inf, np.inf))
    for start in range(0, grid.block, grid.shared):
        part = slice(start, start + grid.shared)
        slopes = np.repeat(scales.of_blocks[:, :, :1], grid.shared, 2)
        slopes[0] *= codes[:, part]
        factors = scales.of_groups[:, :, start // grid.shared]
        left, changes = rest[:, part].copy(), np.zeros_like(rest[:, part])
        own = hessian[part, part]
        for kind, slope in enumerate((slopes[0], *(-each for each in slopes[1:]))):
            product = np.zeros_like(slope)
            _pass_on(own, slice(None), -slope, product)
            gain, cost = (_add_in_order(slope * each) for each in (left, product))
            before = factors[kind].copy()
            made = before + np.where(cost > 0, gain / cost, np.float32(0)).astype(np.float32)
            if grid.factors is None:
                made = made.astype(np.float16).astype(np.float32)
            else:
                made = np.rint(made)
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


def _descend_codes(hessian: F32, codes: F32, rest: F32, scales: F32, grid: CodeValues) -> None:
    """Choose the best code of each column of a block, one after another."""
    for column in range(codes.shape[1]):
        scale, low = scales[:, :, column]
        before = codes[:, column] * scale - low
        wanted = before + rest[:, column] / hessian[column, column]
        code = _choose_codes(wanted, scale, low, grid, codes[:, column])
        change = code * scale - low - before
        codes[:, column] = code
        _pass_on(hessian, slice(column, column + 1), change[:, None], rest)
