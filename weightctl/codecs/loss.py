"""The loss of a conversion, and its measurement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite, nan, sqrt
from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.scalar import overflow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.codecs.scalar import Numbers

    F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a conversion; the losses of a tensor's chunks add up to that of the tensor.

    `count` is the number of values. `overflows` of them were too large for the new encoding, and
    `underflows` became zero although they were not zero (counted only without blocks: in a block,
    this is ordinary rounding). `squares` is the sum of the squares of the values, and
    `squared_error` that of the differences; both leave out values that are infinite or NaN before
    or after. If only overflows were counted, the sums are NaN and `underflows` is 0. `nonfinite`
    values were infinite or NaN, and became zeros before they were encoded; they are measured as
    zeros. `nearest_error` is the `squared_error` that rounding to nearest would have, if scales
    were searched; else it is None.
    """

    count: int
    overflows: int = 0
    underflows: int = 0
    squares: float = 0.0
    squared_error: float = 0.0
    nonfinite: int = 0
    nearest_error: float | None = None

    @classmethod
    def from_counts(cls, count: int, overflows: int = 0, nonfinite: int = 0) -> Loss:
        """Return the loss of a conversion whose errors were not measured, only counted."""
        return cls(count, overflows, 0, nan, nan, nonfinite)

    def __add__(self, other: Loss) -> Loss:
        return Loss(
            self.count + other.count,
            self.overflows + other.overflows,
            self.underflows + other.underflows,
            self.squares + other.squares,
            self.squared_error + other.squared_error,
            self.nonfinite + other.nonfinite,
            self.nearest_error
            if other.nearest_error is None
            else (self.nearest_error or 0.0) + other.nearest_error,
        )

    @property
    def relative_rmse(self) -> float:
        """The root of `squared_error / squares`: 0 for no error, 1 if all values became zero."""
        if self.squares == 0:
            # All values are zero, or their squares are too small even for float64.
            return float(self.underflows > 0 or self.squared_error > 0)
        return sqrt(self.squared_error / self.squares)

    @property
    def nearest_rmse(self) -> float | None:
        """The `relative_rmse` that rounding to nearest would have; None if it was not measured."""
        if self.nearest_error is None:
            return None
        return replace(self, squared_error=self.nearest_error).relative_rmse


def sum_squares_and_error(numbers: F32, held: F32) -> tuple[float, float]:
    """Return the sums of squares of `numbers` and of their differences from `held`, shape (n,).

    The relative error of the sums is at most 1e-6 for values of any size. The sums are not finite
    if a value is not finite. `held` is overwritten.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.subtract(numbers, held, out=held)
        return _sum_of_squares(numbers), _sum_of_squares(error)


# Above this mean square, squares that float32 cannot hold (below 2**-126) are negligible.
_LEAST_MEAN = 2.0**-100


def _sum_of_squares(x: F32) -> float:
    total = _sum_in_chunks(x)
    if x.size * _LEAST_MEAN < total < inf or not x.any():
        return total
    return _sum_in_chunks(x.astype(np.float64))


# Values per chunk: few enough that rounding errors do not accumulate, and that BLAS does not start
# threads for them.
_CHUNK = 4096


def _sum_in_chunks(x: F32 | F64) -> float:
    whole = x.size // _CHUNK * _CHUNK
    chunks, rest = x[:whole].reshape(-1, _CHUNK), x[whole:]
    sums: list[float] = np.vecdot(chunks, chunks).tolist()
    return sum(sums, float(np.vecdot(rest, rest)) if rest.size else 0.0)


_TILE = 1 << 15
# Float64 can hold the sum of 10**28 squares of values up to this size.
_MOST = 1e140


def measure_loss(numbers: Numbers, made: Numbers) -> Loss:
    """Return the loss of values of any type that became `made`, both of shape (n,)."""
    total = Loss(0)
    for start in range(0, numbers.size, _TILE):
        tile = slice(start, start + _TILE)
        total += _measure_tile(numbers[tile], made[tile])
    return total


def _measure_tile(numbers: Numbers, made: Numbers) -> Loss:
    with np.errstate(over="ignore", invalid="ignore"):
        x, held = numbers.astype(np.float64, copy=False), made.astype(np.float64)
        error = _subtract(numbers, x, held)
        squares, squared_error = _sum_in_chunks(x), _sum_in_chunks(error)
    if not (isfinite(squares) and isfinite(squared_error)):
        finite = np.isfinite(error)
        x, error = (np.clip(np.where(finite, v, 0), -_MOST, _MOST) for v in (x, error))
        squares, squared_error = _sum_in_chunks(x), _sum_in_chunks(error)
    underflows = int(np.count_nonzero((x != 0) & (held == 0)))
    return Loss(numbers.size, overflow(numbers, made), underflows, squares, squared_error)


def _subtract(numbers: Numbers, x: F64, held: F64) -> F64:
    if numbers.dtype.kind in "iu" and numbers.itemsize == 8:
        # Float64 cannot hold these integers, but can hold their lower halves, and the differences
        # of the upper halves from `held`.
        upper = numbers >> 32 << 32
        x, held = upper.astype(np.float64) - held, -(numbers - upper).astype(np.float64)
    return x - held
