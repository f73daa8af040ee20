"""Distances between a few thousand values of both tensors of a pair, in total and per run."""

from __future__ import annotations

from math import isfinite, sqrt
from typing import TYPE_CHECKING

import numpy as np

from weightctl.verify.compare.distance import MOST_KEPT, RUN, Measured, PairSide, decode_values
from weightctl.verify.compare.run_sums import compare_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

    F64 = NDArray[np.float64]
    Bools = NDArray[np.bool_]

# If the difference is at most this multiple of one encoding's error, the error of the other
# encoding is not measured.
_NEAR = 2.0
# The float32 rounding of a few operations.
_ROUNDING = 2.0**-22
# A run may be multiplied by a power of two: its logarithm may differ by `_NEAR_POWER` from an
# integer, the factor is at least `_LEAST_FACTOR`, and dividing the run by it leaves at most the
# fraction `_REST` of the squared difference. For such a run, this fraction of the limit applies.
_REST, _NEAR_POWER, _LEAST_FACTOR = 0.1, 0.1, 0.05
_OF_ONE_FACTOR = 0.4
# If the encodings explain an error of less than this fraction of a run's squares, they do not
# explain that all values of the run are zero.
_KEPT = 0.25
# Each run is allowed at least this fraction of the typical error, even if the encoding represents
# its values well by chance.
_SHARE = 0.5
# The number of values that usually share a scale in schemes with groups.
_GROUP = 128


class Tile:
    """A chunk of values of both tensors, cut into runs; the last run is padded with zeros."""

    def __init__(
        self,
        raws: Sequence[U8],
        sides: tuple[PairSide, PairSide],
        start: int,
        count: int,
        is_shifted: bool,
    ) -> None:
        self._raws, self._sides = raws, sides
        self._start, self._count = start, count
        self._is_shifted = is_shifted
        self._is_same = sides[0] == sides[1]

    def measure(self, limit: float | None) -> Measured:
        """Return the distance between the two chunks.

        `limit` is the largest error of a run, as a multiple of the error that the encodings cause.
        If it is None, neither these errors nor the runs beyond the limit are measured.
        """
        found = Measured(self._count)
        own, reference = (
            _shape_runs(decode_values(raw, side.encoding))
            for raw, side in zip(self._raws, self._sides, strict=True)
        )
        first = self._start // RUN
        sums = compare_runs(own, reference)
        if not (isfinite(sums.error.sum()) and isfinite(sums.squares.sum())):
            own, reference = self._zero_nonfinite(own, reference, found)
            sums = compare_runs(own, reference)
        error, squares = sums.error, sums.squares
        found.squares = float(squares.sum())
        is_unequal = self._find_unequal(error)
        if is_unequal is None:
            # Equal bytes have no error.
            found.own_squares = found.product = found.squares
            if not self._is_same and limit is not None:
                found.cost = float(self._measure_cost(own, reference, squares, error, limit).sum())
            return found
        found.own_squares = float(sums.own_squares.sum())
        # Deriving the product from the squares would be inexact if one value is huge.
        found.product = sums.product
        found.error = float(error.sum())
        found.max_error = sums.max_error
        if limit is None:
            found.runs_unequal = int(np.count_nonzero(is_unequal))
            return found
        cost = self._measure_cost(own, reference, squares, error, limit)
        found.cost = float(cost.sum())
        allowed = self._allow_error(cost, squares)
        ratio = error / allowed
        found.worst = sqrt(float(ratio.max()))
        is_beyond = self._find_beyond(ratio, limit, error, own, reference)
        # The limit of a coarse encoding may be as large as the loss of a whole run.
        is_beyond |= (sums.own_squares == 0) & (np.maximum(cost, allowed) < squares * _KEPT)
        beyond = np.flatnonzero(is_beyond)
        found.runs_beyond = len(beyond)
        found.beyond = (beyond[:MOST_KEPT] + first).tolist()
        unequal = np.flatnonzero(is_unequal)
        found.runs_unequal = len(unequal)
        found.unequal = (unequal[:MOST_KEPT] + first).tolist()
        return found

    @staticmethod
    def _find_beyond(ratio: F64, limit: float, error: F64, own: F32, reference: F32) -> Bools:
        """Return whether each run is above the limit, or near it and multiplied by a power of two.

        A flipped bit in a scale's exponent multiplies a run by a power of two. An encoder may also
        shrink all values of a run to fit its largest values, but by any factor.
        """
        beyond = ratio > limit * limit
        near = np.flatnonzero(ratio > (limit * _OF_ONE_FACTOR) ** 2)
        if near.size:
            runs, wanted = (each[near].astype(np.float64) for each in (own, reference))
            product = np.vecdot(runs, wanted)
            factor = product / (np.vecdot(wanted, wanted) + np.finfo(np.float64).tiny)
            power = np.log2(np.maximum(factor, _LEAST_FACTOR))
            is_power = (np.rint(power) != 0) & (np.abs(power - np.rint(power)) < _NEAR_POWER)
            rest = np.vecdot(runs, runs) - factor * product
            beyond[near[is_power & (rest < error[near] * _REST)]] = True
        return beyond

    def _zero_nonfinite(self, own: F32, reference: F32, found: Measured) -> tuple[F32, F32]:
        is_finite, other = np.isfinite(own), np.isfinite(reference)
        is_damaged = is_finite != other
        is_alike = (own == reference) | (np.isnan(own) & np.isnan(reference))
        is_damaged |= ~is_finite & ~other & ~is_alike
        found.nonfinite = int(np.count_nonzero(is_damaged))
        found.nonfinite_there = int(np.count_nonzero(is_finite & ~other))
        if found.nonfinite:
            found.first_nonfinite = self._start + int(np.argmax(is_damaged.reshape(-1)))
        both = is_finite & other
        return np.where(both, own, np.float32(0)), np.where(both, reference, np.float32(0))

    def _find_unequal(self, error: F64) -> Bools | None:
        """Return whether each run is unequal; None if no run is.

        If both sides have the same encoding, bytes are compared instead of values.
        """
        if not self._is_same:
            return error > 0 if error.any() else None
        one, other = self._raws
        if np.array_equal(one, other):
            return None
        encoding = self._sides[0].encoding
        width = encoding.size * max(RUN // encoding.block, 1)
        is_unequal = np.zeros(-(-len(one) // width), bool)
        is_unequal[np.flatnonzero(one != other) // width] = True
        return np.repeat(is_unequal, max(encoding.block // RUN, 1))[: len(error)]

    def _measure_cost(
        self, own: F32, reference: F32, squares: F64, error: F64, limit: float
    ) -> F64:
        """Return the squared error that the encodings cause in each run.

        The values of the side with more bits are encoded and decoded with the other side's
        encoding. If this does not explain the difference, the error of the finer encoding is added.
        """
        mine, theirs = self._sides
        if self._is_same:
            # The values that both sides were encoded from are unknown.
            return self._estimate_cost(mine, squares) * 2
        ways = [(mine, reference), (theirs, own)]
        if mine.bits > theirs.bits:
            ways.reverse()
        cost = np.zeros(len(squares))
        for side, numbers in ways:
            cost += self._measure_cost_of(side, numbers, squares)
            is_beyond = (error > limit * limit * self._allow_error(cost, squares)).any()
            if not is_beyond and error.sum() <= _NEAR**2 * cost.sum():
                break
        return cost

    def _measure_cost_of(self, side: PairSide, numbers: F32, squares: F64) -> F64:
        if side.keeps_all:
            return np.zeros(len(squares))
        flat = numbers.reshape(-1)[: self._count]
        through = side.through(np.ascontiguousarray(flat))
        if through is None:
            return self._estimate_cost(side, squares)
        lost = compare_runs(_shape_runs(through), _shape_runs(flat)).error
        return np.where(np.isfinite(lost), lost, 0)

    def _estimate_cost(self, side: PairSide, squares: F64) -> F64:
        """Return the typical squared error of each run, from the mean squares of its block."""
        if side.keeps_all:
            return np.zeros(len(squares))
        together = len(squares) if side.is_apart else max(side.encoding.block // RUN, 1)
        if together > 1:
            groups = np.add.reduceat(squares, np.arange(0, len(squares), together)) / together
            squares = np.repeat(groups, together)[: len(squares)]
        return squares * side.typical**2

    def _allow_error(self, cost: F64, squares: F64) -> F64:
        coarser = max(side.typical for side in self._sides)
        least = squares * ((_SHARE * coarser) ** 2 + _ROUNDING**2)
        if self._is_shifted:
            least = least + RUN * _ROUNDING**2
        grouped = max((side.typical for side in self._sides if side.is_apart), default=0.0)
        if grouped:
            # One large value determines the errors of its whole group.
            least = np.maximum(least, _find_largest_near(squares) * grouped**2)
        return np.maximum(cost, least) + np.finfo(np.float64).tiny


def _find_largest_near(squares: F64) -> F64:
    """Return, for each run, the largest sum of squares among the runs that may share its scale.

    The groups of a scheme usually have at most 128 values.
    """
    found = squares.copy()
    for distance in range(1, _GROUP // RUN):
        np.maximum(found[distance:], squares[:-distance], out=found[distance:])
        np.maximum(found[:-distance], squares[distance:], out=found[:-distance])
    return found


def _shape_runs(numbers: F32) -> F32:
    """Return values as an array [runs, `RUN`], padded with zeros."""
    rest = -len(numbers) % RUN
    if rest:
        numbers = np.concatenate([numbers, np.zeros(rest, np.float32)])
    return numbers.reshape(-1, RUN)
