"""Searches for the cause that makes a tensor differ from its reference, and proves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.system.registry import load
from weightctl.verify.compare.causes import CAUSES
from weightctl.verify.compare.distance import is_within, measure_pair, measure_sample, sample_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from weightctl.families.config_keys import NamingConvention
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairing import Pair, Pairing
    from weightctl.verify.results import Explanation

    Detector = Callable[[Pair, Pairing, Measured | None], Explanation | None]
    Guesser = Callable[[Pair, Pairing], Iterator[tuple[Pair, Explanation]]]

# A cause with fitted parameters must explain this fraction of the squared error, because many
# parameters would bring a pair that is nearly within its limits to within them.
_LEAST_EXPLAINED = 0.75


def is_proven(made: Pair, pairing: Pairing) -> bool:
    """Whether the two tensors of a pair are equal, within the errors of their encodings."""
    return _measure_within(made, pairing) is not None


def is_likely(made: Pair, pairing: Pairing) -> bool:
    """Whether a sample of the tensors is close enough that `is_proven` may be true."""
    if made.tensor.info.shape != made.reference.info.shape or not made.tensor.info.size:
        return False
    with np.errstate(all="ignore"):
        # The sample may be NaN, which does not match.
        return measure_sample(made, pairing.samples.of) <= sample_limit(made)


def explains(made: Pair, pairing: Pairing, found: Measured) -> bool:
    """Whether a corrected pair is within its limits, and most of the error `found` is gone.

    `found` is the distance before the correction.
    """
    left = _measure_within(made, pairing)
    return left is not None and left.error <= (1 - _LEAST_EXPLAINED) * found.error


def _measure_within(made: Pair, pairing: Pairing) -> Measured | None:
    """Return the distance of a pair; None if it exceeds the errors of the encodings."""
    if not is_likely(made, pairing):
        return None
    found = measure_pair(made)
    return found if is_within(made, found) else None


def computes_the_same(pair: Pair, pairing: Pairing) -> Explanation | None:
    """Return why a tensor differs in a way that does not change the model's results.

    Return None unless all tensors of the same part of the model differ in the same way, such as
    all projections of an attention whose heads are in another order.
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
    """Return the probable cause of a tensor's difference from its reference; None if unknown.

    `pair` is a pair of the pairing, which caches the result. `found` is the distance, if already
    measured. A guessed mistake is accepted if making it in the reference gives the tensor, within
    the errors of the encodings.
    """
    if pair.module not in pairing.causes:
        pairing.causes[pair.module] = _find_cause(pair, pairing, found)
    return pairing.causes[pair.module]


# After this many consecutive tensors without an explanation, the search ends.
PATIENCE = 24


class CauseSearch:
    """Searches for the causes of many tensors, until `PATIENCE` of them in a row have none.

    A search may be slow: to detect an exchanged expert, all other experts of its layer are read.
    """

    def __init__(self, pairing: Pairing) -> None:
        self._pairing = pairing
        self._unexplained = 0

    def explain(self, pair: Pair, found: Measured | None = None) -> Explanation | None:
        """Return what `explain` returns; None if the search has ended."""
        has_ended = self._unexplained >= PATIENCE
        cause = None if has_ended else explain(pair, self._pairing, found)
        self._unexplained = 0 if cause is not None else self._unexplained + 1
        return cause


def explain_each(pairs: Iterable[Pair], pairing: Pairing) -> list[Explanation | None]:
    """Return the probable cause for each pair, as far as a `CauseSearch` finds it."""
    return [*map(CauseSearch(pairing).explain, pairs)]


def _find_cause(pair: Pair, pairing: Pairing, found: Measured | None) -> Explanation | None:
    """Return the first explanation that is accepted; if shapes differ, only guesses are tried."""
    has_shape = pair.tensor.info.shape == pair.reference.info.shape
    if has_shape and found is None:
        found = measure_pair(pair)
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
            # An exchanged tensor is the same in every view, and transposing many takes long.
            seen = views[:1] if cause.takes_another else views
            explanation = _prove(load(cause.guess), seen, pairing)
        if explanation is not None:
            return explanation
    return None


def _prove(guess: Guesser, views: Iterable[Pair], pairing: Pairing) -> Explanation | None:
    """Return the explanation of the first guess whose reference matches the tensor."""
    for view in views:
        for made, explanation in guess(view, pairing):
            if is_proven(made, pairing):
                return explanation
    return None


def _list_views(pair: Pair, pairing: Pairing) -> Iterator[Pair]:
    """Yield the pair as it is compared, in the checkpoint's naming convention, and in GGUF's.

    Views that are equal are left out. A tool makes its mistakes in the naming convention that it
    writes. In GGUF, rows are outputs.
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
