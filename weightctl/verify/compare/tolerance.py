"""How far a tensor may be from its reference, given what their encodings should cost.

The factors are those that hold of conversions with an importance matrix, and of two quantizations
of one model against each other, with some room; random numbers of the right size are further off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.verify.compare.distance import RUN

if TYPE_CHECKING:
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairs import Pair

__all__ = ["allowed", "expected", "is_lone_change", "is_within", "most_in_sample", "run_limit"]

# How many times what it should cost a run may be off; a block of many runs may have nothing left
# for one of them whose numbers are small.
_RUN_LIMIT, _RUN_OF_MANY_LIMIT = 8.0, 12.0
_FACTOR = 3.0
# Numbers that have nothing in common with the reference are further off than this, whatever the
# encoding; and zeros are.
_LOST = 0.75
_ABOVE_LOST = 1.5
_SHARE = 0.5
_IN_SAMPLE, _LEAST_IN_SAMPLE = 8.0, 1e-3
_ROUNDING = 2.0**-20
# So many runs may differ where tensors of one encoding are said to be the same but for some damage.
_FEW = 0.05


def run_limit(pair: Pair) -> float:
    """Return how many times what the encodings cost it a run of a pair may be off."""
    block = max(pair.tensor.info.encoding.block, pair.reference.info.encoding.block)
    return _RUN_LIMIT if block <= RUN else _RUN_OF_MANY_LIMIT


def expected(pair: Pair, measured: Measured) -> float:
    """Return the relative RMSE that the encodings cost; what is usual where they happen not to."""
    least = _SHARE * max(side.typical for side in pair.sides)
    return max(measured.expected, least, _ROUNDING)


def allowed(pair: Pair, measured: Measured) -> float:
    """Return the relative RMSE above which a tensor is not its reference any more."""
    usual = expected(pair, measured)
    return min(_FACTOR * usual, max(_LOST, _ABOVE_LOST * usual))


def most_in_sample(pair: Pair) -> float:
    """Return the relative RMSE of a few numbers above which the whole need not be looked at."""
    coarser = max(side.typical for side in pair.sides)
    return min(max(_IN_SAMPLE * coarser, _LEAST_IN_SAMPLE), 1.0)


def is_lone_change(pair: Pair, measured: Measured) -> bool:
    """Whether both are of one encoding and equal but for a few runs: then nothing may differ.

    Numbers of full precision may: what computes them rounds them.
    """
    side, other = pair.sides
    if side != other or side.keeps_all:
        return False
    return 0 < measured.runs_unequal <= max(1, _FEW * measured.runs)


def is_within(pair: Pair, measured: Measured) -> bool:
    """Whether a tensor is its reference, but for what their encodings cost."""
    is_far = measured.relative_rmse > allowed(pair, measured)
    is_damaged = measured.runs_beyond or measured.nonfinite or is_lone_change(pair, measured)
    return not is_far and not is_damaged
