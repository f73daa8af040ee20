"""Causes by which a tensor is not its reference: what, undone, makes it that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.verify.compare.causes.clipped import find_clipped
from weightctl.verify.compare.causes.damage import DAMAGES
from weightctl.verify.compare.causes.dequantized import find_dequantized
from weightctl.verify.compare.causes.heads import find_equivalent_heads, find_exchanged_heads
from weightctl.verify.compare.causes.low_rank import find_low_rank
from weightctl.verify.compare.causes.misplaced import find_equivalent_experts
from weightctl.verify.compare.causes.misread import find_misread
from weightctl.verify.compare.causes.mistakes import MISTAKES, OF_OTHERS
from weightctl.verify.compare.causes.orders import find_permuted
from weightctl.verify.compare.causes.proof import is_proven
from weightctl.verify.compare.causes.units import find_equivalent_units
from weightctl.verify.compare.distance import run_limit
from weightctl.verify.compare.measure import measure_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from weightctl.families.keys import NamingConvention
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairs import Pair, Pairing
    from weightctl.verify.results import Cause


__all__ = ["ALIKE", "PATIENCE", "computes_the_same", "explain", "explain_each"]

# The names of these causes: what has one of them is not a problem.
ALIKE = {"units_permuted", "heads_permuted", "experts_permuted"}
_FINDERS: tuple[Callable[[Pair, Pairing], Cause | None], ...] = (
    find_equivalent_units,
    find_equivalent_heads,
    find_equivalent_experts,
)
# What is found out from the numbers of a tensor, the most specific first.
_FOUND: tuple[Callable[[Pair, Pairing, Measured], Cause | None], ...] = (
    find_exchanged_heads,
    find_permuted,
    find_clipped,
    find_low_rank,
)
# Where so many tensors in turn are explained by nothing, the others will not be either.
PATIENCE = 24


def computes_the_same(pair: Pair, pairing: Pairing) -> Cause | None:
    """Return why a tensor may differ from its reference as it does, and the model is the same.

    None where it is not so: all tensors that belong together must differ in the same way.
    """
    if pair.tensor.info.shape != pair.reference.info.shape:
        return None
    return next(filter(None, (find(pair, pairing) for find in _FINDERS)), None)


def explain(pair: Pair, pairing: Pairing, found: Measured | None = None) -> Cause | None:
    """Return what probably made a tensor another than its reference; None where nothing is known.

    `pair` is one of the pairing's, which keeps what is found. `found` is how far they are apart,
    where that was measured. A mistake counts where the reference with the same mistake is the
    tensor, within what the encodings cost.
    """
    if pair.module not in pairing.causes:
        pairing.causes[pair.module] = _find_cause(pair, pairing, found)
    return pairing.causes[pair.module]


def explain_each(pairs: Iterable[Pair], pairing: Pairing) -> list[Cause | None]:
    """Return what made each of some tensors another; None for the rest where none comes to light.

    To tell that of one of many experts all others of its layer are looked at.
    """
    causes: list[Cause | None] = []
    for pair in pairs:
        is_hopeless = len(causes) >= PATIENCE and not any(causes[-PATIENCE:])
        causes.append(None if is_hopeless else explain(pair, pairing))
    return causes


def _find_cause(pair: Pair, pairing: Pairing, found: Measured | None) -> Cause | None:
    if pair.tensor.info.shape != pair.reference.info.shape:
        return _find_mistake(pair, pairing)
    found = measure_pair(pair, run_limit(pair)) if found is None else found
    for damage in DAMAGES:
        cause = damage(pair, found)
        if cause is not None:
            return cause
    for find in (find_misread, find_dequantized):
        cause = find(pair, pairing, found)
        if cause is not None:
            return cause
    cause = computes_the_same(pair, pairing) or _find_mistake(pair, pairing)
    if cause is not None:
        return cause
    return next(filter(None, (find(pair, pairing, found) for find in _FOUND)), None)


def _find_mistake(pair: Pair, pairing: Pairing) -> Cause | None:
    views = list(_list_views(pair, pairing))
    for mistake in MISTAKES:
        # Another tensor is the same in every view, and to turn many takes long.
        for view in views[:1] if mistake in OF_OTHERS else views:
            for made, cause in mistake(view, pairing):
                if is_proven(made, pairing):
                    return cause
    return None


def _list_views(pair: Pair, pairing: Pairing) -> Iterator[Pair]:
    """Yield the pair as it is stored, and as a tensor of GGUF: rows are outputs there.

    Mistakes are made in the dialect that a checkpoint is written in.
    """
    yield pair
    own = pairing.checkpoint
    dialects: list[NamingConvention] = [] if own is None else [own.dialect]
    seen = {pair.tensor.origin.steps}
    for dialect in (*dialects, "gguf"):
        view = pairing.seen_in(dialect, pair)
        if view is not None and view.tensor.origin.steps not in seen:
            seen.add(view.tensor.origin.steps)
            yield view
