"""How far a tensor is from its reference: figures of its pieces, which add up."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf, nan, sqrt
from operator import add
from typing import Any

__all__ = ["MOST_KEPT", "RUN", "Measured", "relative"]

# The numbers of a run: the least block that has a scale of its own.
RUN = 32
# Of runs that are wrong so many are remembered.
MOST_KEPT = 4096


def _first(own: int, other: int) -> int:
    return own if own >= 0 else other


def _kept(own: list[int], other: list[int]) -> list[int]:
    return own + other[: MOST_KEPT - len(own)]


# The field's metadata say what a number of two pieces comes to where that is not the sum.
_OF_BOTH = "of_both"


@dataclass(slots=True)
class Measured:
    """How far a tensor is from its reference; what was measured of its pieces adds up.

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
    first_nonfinite: int = field(default=-1, metadata={_OF_BOTH: _first})
    beyond: list[int] = field(default_factory=list[int], metadata={_OF_BOTH: _kept})
    unequal: list[int] = field(default_factory=list[int], metadata={_OF_BOTH: _kept})

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
        return relative(self.error, self.squares)

    @property
    def expected(self) -> float:
        """What the encodings should cost, of the same kind."""
        return relative(self.cost, self.squares)

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


def relative(squared: float, squares: float) -> float:
    """Return the root of a sum of squares over another; infinite where that is of nothing."""
    if squared == 0:
        return 0.0
    return sqrt(squared / squares) if squares else inf
