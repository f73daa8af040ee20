"""Distance of a tensor from its reference, and the limits that what their encodings cost sets.

The figures of its pieces add up. The factors of the limits are those that hold of conversions with
an importance matrix, and of two quantizations of one model against each other, with some room;
random numbers of the right size are further off.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf, nan, sqrt
from operator import add
from typing import TYPE_CHECKING, Any

from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.rows import RowOrder

if TYPE_CHECKING:
    from weightctl.verify.compare.pairs import Pair


__all__ = [
    "MOST_KEPT",
    "RUN",
    "Measured",
    "allowed_error",
    "expected_error",
    "is_lone_change",
    "is_within",
    "relative_root",
    "rows_of_runs",
    "run_limit",
    "sample_limit",
    "stored_rows",
]

# The numbers of a run: the least block that has a scale of its own.
RUN = 32
# Of runs that are wrong so many are remembered.
MOST_KEPT = 4096
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


def _keep_first_known(own: int, other: int) -> int:
    return own if own >= 0 else other


def _join_kept(own: list[int], other: list[int]) -> list[int]:
    return own + other[: MOST_KEPT - len(own)]


# The field's metadata say what a number of two pieces comes to where that is not the sum.
_OF_BOTH = "of_both"


@dataclass(slots=True)
class Measured:
    """The distance of a tensor from its reference; what was measured of its pieces adds up.

    `squares` are of the reference, `own_squares` of the tensor, `product` of one with the other,
    `error` of their differences and `cost` of what their encodings should cost. `worst` is how many
    times what they should cost the difference is in the worst run. `beyond` are the numbers of runs
    that are further than the limit, as far as they are kept, and `runs_beyond` how many there are;
    `unequal` and `runs_unequal` are the same for those that are not equal at all.
    `nonfinite` counts numbers that are infinite or NaN on one side alone, or not the same on both,
    and `nonfinite_there` those of them that are finite here.
    """

    count: int = 0
    squares: float = 0.0
    own_squares: float = 0.0
    product: float = 0.0
    error: float = 0.0
    cost: float = 0.0
    max_error: float = field(default=0.0, metadata={_OF_BOTH: max})
    worst: float = field(default=0.0, metadata={_OF_BOTH: max})
    runs_beyond: int = 0
    runs_unequal: int = 0
    nonfinite: int = 0
    nonfinite_there: int = 0
    first_nonfinite: int = field(default=-1, metadata={_OF_BOTH: _keep_first_known})
    beyond: list[int] = field(default_factory=list[int], metadata={_OF_BOTH: _join_kept})
    unequal: list[int] = field(default_factory=list[int], metadata={_OF_BOTH: _join_kept})

    def add(self, other: Measured) -> None:
        """Add what was measured of a piece behind those so far."""
        for each in fields(self):
            of_both: Any = each.metadata.get(_OF_BOTH, add)
            setattr(self, each.name, of_both(getattr(self, each.name), getattr(other, each.name)))

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return -(-self.count // RUN)

    @property
    def relative_rmse(self) -> float:
        """The root of the squared differences over the reference's squares."""
        if self.nonfinite:
            return inf
        return relative_root(self.error, self.squares)

    @property
    def expected(self) -> float:
        """What the encodings should cost, of the same kind."""
        return relative_root(self.cost, self.squares)

    @property
    def cosine(self) -> float:
        """Between both as vectors; 1 where both are zeros, 0 where one is.

        NaN where some numbers are finite on one side alone.
        """
        if self.nonfinite:
            return nan
        if self.error == 0:
            return 1.0
        lengths = sqrt(self.squares) * sqrt(self.own_squares)
        if lengths == 0:
            return 0.0
        return max(-1.0, min(1.0, self.product / lengths))


def relative_root(squared: float, squares: float) -> float:
    """Return the root of a sum of squares over another; infinite where that is of nothing."""
    if squared == 0:
        return 0.0
    return sqrt(squared / squares) if squares else inf


def run_limit(pair: Pair) -> float:
    """Return how many times what the encodings cost it a run of a pair may be off."""
    block = max(pair.tensor.info.encoding.block, pair.reference.info.encoding.block)
    return _RUN_LIMIT if block <= RUN else _RUN_OF_MANY_LIMIT


def expected_error(pair: Pair, measured: Measured) -> float:
    """Return the relative RMSE that the encodings cost; what is usual where they happen not to."""
    least = _SHARE * max(side.typical for side in pair.sides)
    return max(measured.expected, least, _ROUNDING)


def allowed_error(pair: Pair, measured: Measured) -> float:
    """Return the relative RMSE above which a tensor is not its reference any more."""
    usual = expected_error(pair, measured)
    return min(_FACTOR * usual, max(_LOST, _ABOVE_LOST * usual))


def sample_limit(pair: Pair) -> float:
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
    is_far = measured.relative_rmse > allowed_error(pair, measured)
    is_damaged = measured.runs_beyond or measured.nonfinite or is_lone_change(pair, measured)
    return not is_far and not is_damaged


def rows_of_runs(pair: Pair, runs: list[int]) -> list[int]:
    """Return the rows, of one index of the first dimension each, that runs of numbers begin in.

    They are counted as in the naming convention that both are compared in.
    """
    shape = pair.tensor.info.shape
    width = pair.tensor.info.size // shape[0] if shape and shape[0] else 1
    return list(dict.fromkeys(run * RUN // width for run in runs))


def stored_rows(pair: Pair, rows: list[int]) -> list[int]:
    """Return the same rows, smallest first, as the file that the tensor is in counts them."""
    step = pair.tensor.step if isinstance(pair.tensor, DerivedTensor) else None
    return sorted(step.order[row] for row in rows) if isinstance(step, RowOrder) else rows
