"""Search for the cause by which a tensor is not its reference, in the order of their table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load
from weightctl.verify.compare.causes import CAUSES
from weightctl.verify.compare.causes.proof import is_proven
from weightctl.verify.compare.distance import run_limit
from weightctl.verify.compare.measure import measure_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from weightctl.families.keys import NamingConvention
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairs import Pair, Pairing
    from weightctl.verify.results import Explanation

    Detector = Callable[[Pair, Pairing, Measured | None], Explanation | None]
    Guesser = Callable[[Pair, Pairing], Iterator[tuple[Pair, Explanation]]]

__all__ = ["PATIENCE", "computes_the_same", "explain", "explain_each"]

# Where so many tensors in turn are explained by nothing, the others will not be either.
PATIENCE = 24


def computes_the_same(pair: Pair, pairing: Pairing) -> Explanation | None:
    """Return why a tensor may differ from its reference as it does, and the model is the same.

    None where it is not so: all tensors that belong together must differ in the same way.
    """
    if pair.tensor.info.shape != pair.reference.info.shape:
        return None
    for cause in CAUSES.values():
        if cause.computes_the_same:
            detect: Detector = load(cause.detector)
            if explanation := detect(pair, pairing, None):
                return explanation
    return None


def explain(pair: Pair, pairing: Pairing, found: Measured | None = None) -> Explanation | None:
    """Return what probably made a tensor another than its reference; None where nothing is known.

    `pair` is one of the pairing's, which keeps what is found. `found` is how far they are apart,
    where that was measured. A mistake counts where the reference with the same mistake is the
    tensor, within what the encodings cost.
    """
    if pair.module not in pairing.causes:
        pairing.causes[pair.module] = _find_cause(pair, pairing, found)
    return pairing.causes[pair.module]


def explain_each(pairs: Iterable[Pair], pairing: Pairing) -> list[Explanation | None]:
    """Return what made each of some tensors another; None for the rest where none comes to light.

    To tell that of one of many experts all others of its layer are looked at.
    """
    causes: list[Explanation | None] = []
    for pair in pairs:
        is_hopeless = len(causes) >= PATIENCE and not any(causes[-PATIENCE:])
        causes.append(None if is_hopeless else explain(pair, pairing))
    return causes


def _find_cause(pair: Pair, pairing: Pairing, found: Measured | None) -> Explanation | None:
    """Return the first explanation that holds; where shapes differ only guesses are made."""
    has_shape = pair.tensor.info.shape == pair.reference.info.shape
    if has_shape and found is None:
        found = measure_pair(pair, run_limit(pair))
    views = [*_list_views(pair, pairing)]
    tried: set[str] = set()
    for cause in CAUSES.values():
        search = cause.detector or cause.guess
        if not search or search in tried or (cause.detector and not has_shape):
            continue
        tried.add(search)
        if cause.detector:
            detect: Detector = load(cause.detector)
            explanation = detect(pair, pairing, found)
        else:
            # Another tensor is the same in every view, and to turn many takes long.
            seen = views[:1] if cause.takes_another else views
            explanation = _prove(load(cause.guess), seen, pairing)
        if explanation is not None:
            return explanation
    return None


def _prove(guess: Guesser, views: Iterable[Pair], pairing: Pairing) -> Explanation | None:
    """Return the explanation of the first guess that makes the tensor of its reference."""
    for view in views:
        for made, explanation in guess(view, pairing):
            if is_proven(made, pairing):
                return explanation
    return None


def _list_views(pair: Pair, pairing: Pairing) -> Iterator[Pair]:
    """Yield the pair as it is stored, and as a tensor of GGUF: rows are outputs there.

    Mistakes are made in the naming convention that a checkpoint is written in.
    """
    yield pair
    own = pairing.checkpoint
    conventions: list[NamingConvention] = [] if own is None else [own.convention]
    seen = {pair.tensor.origin.steps}
    for convention in (*conventions, "gguf"):
        view = pairing.seen_in(convention, pair)
        if view is not None and view.tensor.origin.steps not in seen:
            seen.add(view.tensor.origin.steps)
            yield view
