"""A search for the scales of blocks whose rounded values have the smallest squared error.

A scale from the largest magnitude of a block stores that value well. A smaller one clips it, and
stores all others in finer steps. The search tries ratios of the range of each block, and keeps the
one with the smallest error; the ratio 1, which is rounding to nearest, comes first, so no block
becomes worse. Errors can be weighted by the importance of columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs.loss import sum_squares_and_error
from weightctl.formats.imatrix.curvatures import Curvatures
from weightctl.schemes.arrays.rounding import (
    Affine,
    Biased,
    Clips,
    Codes,
    Float8,
    Microscaled4,
    Microscaled8,
    reduce_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.codecs.base import F32
    from weightctl.formats.imatrix.entry import ColumnWeights, Products
    from weightctl.schemes.arrays.rounding import Rounding

# If the importance of all columns is at most this, it is ignored.
_NEGLIGIBLE = 1e-30
# Ratios of the range of a block, and the factors of the best ratio that are tried afterwards.
_RATIOS = (1.1, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5)
_FLOAT_RATIOS = (1.55, 1.4, 1.25, *_RATIOS)
_FACTORS = (1.025, 0.975, 1.0125, 0.9875)
_EDGE_FACTORS = (0.95, 1.05, 0.9, 0.975, 1.025)
# Powers of two have no values between them.
_POWERS = (2.0, 0.5)
# Ratios of the largest magnitude of whole weights: eight steps to a power of two.
_WHOLE_RATIOS = tuple(2.0 ** (-step / 8) for step in (0, *range(-7, 0), *range(1, 17)))


@dataclass(frozen=True, slots=True, eq=False)
class ScaleSearch:
    """The search for the scales of a weight, whose rows have `columns` values.

    Row `matrix` of `importance` weights the errors in each column; without it, all are equal. With
    `products`, codes are chosen with error feedback; weights share the `curvatures`.
    """

    columns: int
    importance: ColumnWeights | None = None
    matrix: int = 0
    products: Products | None = None
    curvatures: Curvatures = field(default_factory=Curvatures)

    def find_weights(self, first: int, shape: tuple[int, int]) -> F32 | None:
        """Return the weights of a table of values, which `first` values of the weight precede.

        They broadcast to `shape`; the result is None if all errors are equally important.
        """
        if self.importance is None:
            return None
        weights = self.importance[self.matrix]
        most = weights.max(initial=np.float32(0))
        if most <= _NEGLIGIBLE:
            return None
        weights = (weights / most).astype(np.float32)
        if shape[1] == self.columns and first % self.columns == 0:
            row: F32 = weights[None]
            return row
        places = np.arange(first, first + shape[0] * shape[1]) % self.columns
        found: F32 = weights[places].reshape(shape)
        return found


class SearchedCodes(NamedTuple):
    """The codes with the smallest error; and the squared error of rounding to nearest."""

    codes: Codes
    nearest_error: float


class _RatioTrial:
    """The best ratios of the blocks of a tile so far, and their errors."""

    def __init__(
        self, rounding: Rounding, values: F32, peak: np.float32, weights: F32 | None
    ) -> None:
        self._rounding, self._values, self._peak = rounding, values, peak
        self._weights = weights
        self._block = find_block(rounding, values.shape[1])
        held = rounding.restore(rounding.round(values, peak), peak)
        self.nearest_error = sum_squares_and_error(values.reshape(-1), held.reshape(-1))[1]
        # The values that were restored are now the differences.
        held *= held
        self.errors = self._sum(held)
        ones = np.ones(self.errors.shape, np.float32)
        self.clips = Clips(ones, ones)

    def _square(self, clips: Clips) -> F32:
        codes = self._rounding.round(self._values, self._peak, clips)
        held = self._rounding.restore(codes, self._peak)
        held -= self._values
        held *= held
        return held

    def _sum(self, squares: F32) -> F32:
        if self._weights is not None:
            squares *= self._weights
        rows, columns = self._block
        sums = reduce_blocks(np.add, squares, columns, 1)
        return sums if rows == 1 else reduce_blocks(np.add, sums, rows, 0)

    def attempt(self, low: float, high: float, start: Clips) -> None:
        """Try multiples of ratios, and keep those of the blocks that become better."""
        clips = Clips(start.low * np.float32(low), start.high * np.float32(high))
        errors = self._sum(self._square(clips))
        is_better = errors < self.errors
        self.errors = np.where(is_better, errors, self.errors)
        self.clips = Clips(
            np.where(is_better, clips.low, self.clips.low),
            np.where(is_better, clips.high, self.clips.high),
        )


def search_codes(
    rounding: Rounding,
    values: F32,
    peak: np.float32,
    weights: F32 | None = None,
    ratio: np.float32 | None = None,
) -> SearchedCodes:
    """Round a tile with the scales that have the smallest squared error.

    `weights` broadcast to the tile. If the whole weight has one scale, `ratio` is that of
    `find_ratio`. `peak` is the largest magnitude of the whole weight.
    """
    trial = _RatioTrial(rounding, values, peak, weights)
    if ratio is not None:
        shared = np.full((1, 1), ratio, np.float32)
        trial.clips = Clips(shared, shared)
    else:
        start = trial.clips
        for each in _list_ratios(rounding):
            trial.attempt(each, each, start)
        for low, high in _list_factors(rounding):
            trial.attempt(low, high, trial.clips)
    return SearchedCodes(rounding.round(values, peak, trial.clips), trial.nearest_error)


def _list_ratios(rounding: Rounding) -> Sequence[float]:
    match rounding:
        case Microscaled8() | Microscaled4(is_nvidia=False):
            return _POWERS
        case Float8() | Microscaled4():
            return _FLOAT_RATIOS
        case _:
            return _RATIOS


def _list_factors(rounding: Rounding) -> Iterator[tuple[float, float]]:
    """Yield factors of the smallest and of the largest value of a block."""
    if isinstance(rounding, Microscaled8 | Microscaled4):
        # Scales have no values between those of the ratios.
        return
    if isinstance(rounding, Affine | Biased):
        yield from ((factor, 1.0) for factor in _EDGE_FACTORS)
        yield from ((1.0, factor) for factor in _EDGE_FACTORS)
    yield from ((factor, factor) for factor in _FACTORS)


def find_ratio(
    rounding: Rounding,
    tiles: Iterator[tuple[F32, F32 | None]],
    peak: np.float32,
) -> np.float32:
    """Return the ratio with the smallest error for weights that share one scale.

    `tiles` are the values of all of them with the weights of their errors. This holds one tile at
    a time.
    """
    errors = np.zeros(len(_WHOLE_RATIOS))
    for values, weights in tiles:
        for place, ratio in enumerate(_WHOLE_RATIOS):
            factor = np.full((1, 1), ratio, np.float32)
            codes = rounding.round(values, peak, Clips(factor, factor))
            difference = rounding.restore(codes, peak)
            difference -= values
            difference *= difference
            if weights is not None:
                difference *= weights
            errors[place] += difference.sum(dtype=np.float64)
    errors[~np.isfinite(errors)] = np.inf
    return np.float32(_WHOLE_RATIOS[int(np.argmin(errors))])


def has_one_scale(rounding: Rounding) -> bool:
    """Whether the whole weight has one scale."""
    return not rounding.grid.columns


def find_block(rounding: Rounding, width: int) -> tuple[int, int]:
    """Return the number of rows and columns that share a scale, in rows of `width` values."""
    grid = rounding.grid
    return max(1, grid.rows), min(grid.columns or width, width)
