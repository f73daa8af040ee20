"""How far a tensor is from its reference: figures of its pieces, which add up."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nan, sqrt

__all__ = ["MOST_KEPT", "RUN", "Measured", "relative"]

# The numbers of a run: the least block that has a scale of its own.
RUN = 32
# Of runs that are wrong so many are remembered.
MOST_KEPT = 4096


@dataclass(slots=True)
class Measured:
    """How far a tensor is from its reference; what was measured of its pieces adds up.

    `squares` are of the reference, `own_squares` of the tensor, `product` of one with the other,
    `error` of their differences and `cost` of what their encodings should cost. `worst` is how many
    times what they should cost the difference is in the run number `worst_run`. `beyond` are the
    numbers of runs that are further than the limit, as far as they are kept, and `runs_beyond` how
    many there are; `unequal` and `runs_unequal` are the same for those that are not equal at all.
    `nonfinite` counts numbers that are infinite or NaN on one side alone, or not the same on both,
    and `nonfinite_there` those of them that are finite here.
    """

    count: int = 0
    squares: float = 0.0
    own_squares: float = 0.0
    product: float = 0.0
    error: float = 0.0
    cost: float = 0.0
    max_error: float = 0.0
    worst: float = 0.0
    worst_run: int = 0
    runs_beyond: int = 0
    runs_unequal: int = 0
    nonfinite: int = 0
    nonfinite_there: int = 0
    first_nonfinite: int = -1
    beyond: list[int] = field(default_factory=list[int])
    unequal: list[int] = field(default_factory=list[int])

    def add(self, other: Measured) -> None:
        """Add what was measured of a piece behind those so far."""
        self.count += other.count
        self.squares += other.squares
        self.own_squares += other.own_squares
        self.product += other.product
        self.error += other.error
        self.cost += other.cost
        self.max_error = max(self.max_error, other.max_error)
        if other.worst > self.worst:
            self.worst, self.worst_run = other.worst, other.worst_run
        self.runs_beyond += other.runs_beyond
        self.runs_unequal += other.runs_unequal
        if self.first_nonfinite < 0:
            self.first_nonfinite = other.first_nonfinite
        self.nonfinite += other.nonfinite
        self.nonfinite_there += other.nonfinite_there
        self.beyond += other.beyond[: MOST_KEPT - len(self.beyond)]
        self.unequal += other.unequal[: MOST_KEPT - len(self.unequal)]

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
