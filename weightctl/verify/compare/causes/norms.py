"""Norms in the place of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.verify.compare.causes.proof import is_likely, is_proven
from weightctl.verify.problem import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.verify.compare.pairs import Pair, Pairing

    Guess = tuple[Pair, Cause]

__all__ = ["other_norm"]


def other_norm(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair with the reference of each other norm of its layer, and of none."""
    if not _is_norm(pair):
        return
    for other in pairing.pairs:
        is_near = other.layer in {pair.layer, None} or pair.layer is None
        if not is_near or other.part == pair.part or not _is_norm(other):
            continue
        if _kind(other) != _kind(pair) or other.reference.info.shape != pair.tensor.info.shape:
            continue
        made = _with_reference_of(pair, other)
        if is_likely(made, pairing):
            how = f"it is a copy of `{other.name}`"
            if is_proven(_with_reference_of(other, pair), pairing):
                how = f"it and `{other.name}` are swapped"
            yield made, Cause("norms_exchanged", how)


def _with_reference_of(pair: Pair, other: Pair) -> Pair:
    return pair._replace(reference=other.reference, reference_bits=other.reference_bits)


def _is_norm(pair: Pair) -> bool:
    return len(pair.tensor.info.shape) == 1 and "norm" in pair.part


def _kind(pair: Pair) -> str:
    """Return `weight` or `bias`."""
    return pair.part.rpartition(".")[2]
