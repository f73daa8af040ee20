"""Tensors that differ from the reference's and together compute what those do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.verify.compare.causes.experts import experts_alike
from weightctl.verify.compare.causes.heads import heads_alike
from weightctl.verify.compare.causes.units import units_alike

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.verify.compare.pairs import Pair, Pairing
    from weightctl.verify.problem import Cause

__all__ = ["ALIKE", "computes_the_same"]

# The names of these causes: what has one of them is not a problem.
ALIKE = {"units_permuted", "heads_permuted", "experts_permuted"}
_FINDERS: tuple[Callable[[Pair, Pairing], Cause | None], ...] = (
    units_alike,
    heads_alike,
    experts_alike,
)


def computes_the_same(pair: Pair, pairing: Pairing) -> Cause | None:
    """Return why a tensor may differ from its reference as it does, and the model is the same.

    None where it is not so: all tensors that belong together must differ in the same way.
    """
    if pair.tensor.info.shape != pair.reference.info.shape:
        return None
    return next(filter(None, (find(pair, pairing) for find in _FINDERS)), None)
