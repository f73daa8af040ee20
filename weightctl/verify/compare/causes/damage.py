"""What of a tensor was lost: it is its reference, but for something that nobody could undo."""

from __future__ import annotations

from math import isfinite, log2, sqrt
from typing import TYPE_CHECKING

import numpy as np

from weightctl.verify.compare.causes.wiped import rows_lost
from weightctl.verify.compare.distance import RUN
from weightctl.verify.compare.measuring import numbers_from
from weightctl.verify.compare.tolerance import allowed
from weightctl.verify.problem import Cause

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairs import Pair

__all__ = ["DAMAGES"]

# How many times the usual error of an encoding may be left when a factor is undone.
_REST = 3.0
_NEAR_ONE = 0.02
# Where more of a difference is left when a factor is undone, that is not what it is.
_MOST_LEFT = 0.5
# What the sums of float32 are measured by leave of a difference, where an encoding leaves less.
_SUMS_APART = 1e-3
# Where so little of a difference is left, the factor is all there was.
_OF_FACTOR = 1e-4


def _zeroed(pair: Pair, found: Measured) -> Cause | None:
    if found.own_squares or not found.squares or found.nonfinite:
        return None
    del pair
    return Cause("zeroed", "all its numbers are 0: it was never written, or was wiped")


def _scale(pair: Pair, found: Measured) -> Cause | None:
    """One scale of a block of the checkpoint that is another."""
    encoding = pair.tensor.info.encoding
    runs = max(encoding.block // RUN, 1)
    wrong = found.beyond or found.unequal
    if encoding.quantization is None or not wrong or len(wrong) > runs:
        return None
    if wrong[0] // runs != wrong[-1] // runs or found.runs_beyond > len(found.beyond):
        return None
    start = wrong[0] // runs * runs * RUN
    own, reference = (
        numbers_from(tensor, start, encoding.block).astype(np.float64)
        for tensor in (pair.tensor, pair.reference)
    )
    where = f"{_block(pair, start)} is damaged"
    if not np.isfinite(own).all():
        return Cause("scale", f"the scale of {where}: it is infinite or NaN")
    squares = float(np.vdot(reference, reference))
    factor = float(np.vdot(own, reference)) / squares if squares else 0.0
    rest = float(np.sum((own - factor * reference) ** 2))
    error = float(np.sum((own - reference) ** 2))
    usual = _REST * pair.sides[0].typical
    size = max(float(np.vdot(own, own)), factor**2 * squares)
    if rest < _OF_FACTOR * error or (abs(factor - 1) > _NEAR_ONE and rest < usual**2 * size):
        return Cause("scale", f"the scale of {where}: {_times(factor)} what it should be")
    # Where blocks have scales of parts too, one of those is not to blame for all of it.
    if runs > 1 and len(wrong) >= runs - 1:
        return Cause("scale", f"a scale of {where}")
    return None


def _block(pair: Pair, start: int) -> str:
    width = pair.tensor.info.row
    first, last = start % width, start % width + pair.tensor.info.encoding.block - 1
    return f"the block of numbers {first} to {last} in row {start // width}"


def _times(factor: float) -> str:
    power = log2(abs(factor)) if factor and isfinite(factor) else 0.5
    if abs(power - round(power)) < 0.1 and abs(power) > 1.5:
        return f"2^{round(power)} times"
    return f"{factor:.3g} times"


def _scaled(pair: Pair, found: Measured) -> Cause | None:
    """All numbers are the reference's, times one factor."""
    if not found.squares or not found.own_squares or found.nonfinite:
        return None
    if found.relative_rmse <= allowed(pair, found):
        return None
    factor = found.product / found.squares
    rest = found.own_squares - factor * found.product
    usual = max(*(side.typical for side in pair.sides), _SUMS_APART)
    if abs(factor - 1) < _NEAR_ONE or sqrt(max(rest, 0.0) / found.own_squares) > _REST * usual:
        return None
    if rest > _MOST_LEFT * found.error:
        return None
    return Cause("scaled", f"all its numbers are {_times(factor)} what they should be")


DAMAGES: tuple[Callable[[Pair, Measured], Cause | None], ...] = (
    _zeroed,
    _scale,
    rows_lost,
    _scaled,
)
