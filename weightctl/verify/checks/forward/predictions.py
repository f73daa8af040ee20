"""Compares two models' predictions of the next tokens, with each other and with limits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.verify.figures import Divergence
from weightctl.verify.results import Problem
from weightctl.verify.run.output import (
    ActivationSums,
    compute_log_probabilities,
    compute_losses,
    compute_perplexity,
    count_positions,
    list_next_tokens,
    list_targets,
)
from weightctl.verify.run.parts import OUTPUT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.verify.figures import Activation, NextToken
    from weightctl.verify.request import Request
    from weightctl.verify.run.parts import Running
    from weightctl.verify.run.prompt import Prompt

    F64 = NDArray[np.float64]

# The number of values to convert to float64 at once.
_RUN = 1 << 20
# The upper bounds of the histogram in nats, three for each factor of ten. Divergences below the
# first bound are rounding.
_BOUNDS = tuple(float(f"{10 ** (third / 3):.2g}") for third in range(-18, 4))


class Agreement:
    """The divergences of two models' predictions at the same positions, added in batches.

    `divergences` has the Kullback-Leibler divergence from the reference's distribution to the
    other at each position, float64, in nats. It is infinite where either model has logits that are
    NaN or positive infinite. `agreed` is the number of positions where both models predict the same
    most likely token.
    """

    def __init__(self) -> None:
        self._divergences: list[F64] = []
        self.agreed = 0

    def add(self, reference: F32, logits: F32) -> None:
        """Add the logits of more positions: [positions, vocabulary] from both models."""
        at_once = max(1, _RUN // max(1, reference.shape[-1]))
        for first in range(0, len(reference), at_once):
            run = slice(first, first + at_once)
            self._divergences.append(_measure_divergences(reference[run], logits[run]))
            same = reference[run].argmax(axis=-1) == logits[run].argmax(axis=-1)
            self.agreed += int(np.count_nonzero(same))

    @property
    def divergences(self) -> F64:
        """The divergences of all positions so far, in order."""
        return np.concatenate(self._divergences) if self._divergences else np.empty(0)


def _measure_divergences(reference: F32, logits: F32) -> F64:
    with np.errstate(over="ignore", invalid="ignore"):
        expected, other = compute_log_probabilities(reference), compute_log_probabilities(logits)
        terms = np.exp(expected) * (expected - other)
        # A token with probability zero in the reference does not add to the divergence.
        terms[(expected == -np.inf) & (reference == -np.inf)] = 0
        found: F64 = terms.sum(axis=-1)
    # Rounding makes the divergence of equal distributions slightly negative.
    return np.where(np.isfinite(found), np.maximum(found, 0), np.inf)


def summarize(numbers: F64) -> Divergence:
    """Return the mean, 99th percentile, maximum and histogram of divergences.

    Figures may be infinite if a divergence is. They are None if there are no divergences.
    """
    histogram = count_by_bound(numbers)
    if not numbers.size:
        return Divergence(layers=(), histogram=histogram)
    # An infinite value cannot be interpolated.
    nearest = np.percentile(numbers, 99, method="higher")
    percentile = nearest if np.isinf(numbers).any() else np.percentile(numbers, 99)
    return Divergence(
        layers=(),
        mean=float(numbers.mean()),
        percentile_99=float(percentile),
        greatest=float(numbers.max()),
        histogram=histogram,
    )


def count_by_bound(
    numbers: F64, bounds: Sequence[float] = _BOUNDS
) -> tuple[tuple[float, int], ...]:
    """Return each upper bound with the number of values between the previous bound and it.

    A value that equals a bound counts for the next bound. If there are values beyond the last
    bound, an infinite bound is appended.
    """
    edges = [-np.inf, *bounds, np.inf]
    places = np.searchsorted(edges, numbers, side="right") - 1
    counts = np.bincount(np.minimum(places, len(bounds)), minlength=len(bounds) + 1).tolist()
    pairs = list(zip([*bounds, float("inf")], counts, strict=True))
    return tuple(pairs if counts[-1] else pairs[:-1])


def find_least_cosine(reference: F32, states: F32) -> float:
    """Return the smallest cosine between states at the same positions, [positions, hidden].

    The cosine of equal vectors is 1, and of other vectors that are zero or not finite 0. If there
    are no positions, the result is 1.
    """
    a, b = reference.astype(np.float64), states.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
        cosines = np.vecdot(a, b) / lengths
    same = (a == b).all(axis=-1)
    cosines = np.where(same, 1.0, np.where(np.isfinite(cosines), cosines, 0.0))
    return float(cosines.min(initial=1.0))


class Predictions(NamedTuple):
    """The divergence of two models' predictions, and the figures of the first model's output.

    Perplexities are None if there is nothing to predict, if the tokens are not text, or if losses
    are not finite.
    """

    divergence: Divergence
    perplexity: float | None
    next_tokens: tuple[NextToken, ...]
    activation: Activation


def predict(
    subject: Running, reference: Running, own: F32, wanted: F32, given: Prompt
) -> Predictions:
    """Compare the predictions of both models, computed from the outputs of their last layers.

    `own` and `wanted` are these outputs of the checkpoint and of the reference, [windows,
    positions, hidden]. Positions without a token are ignored, and so are tokens that only one of
    the models has.
    """
    own, wanted, targets = own[given.mask], wanted[given.mask], list_targets(given)
    known = min(subject.vocabulary, reference.vocabulary)
    agreement, gathered = Agreement(), ActivationSums(OUTPUT)
    lost: list[F64] = []
    other_lost: list[F64] = []
    last: tuple[NextToken, ...] = ()
    # Half as many positions as usual, since the logits of both models are in memory.
    step = max(1, count_positions(max(subject.vocabulary, reference.vocabulary)) // 2)
    for start in range(0, len(own), step):
        logits = subject.end(own[None, start : start + step])[0, :, :known]
        other = reference.end(wanted[None, start : start + step])[0, :, :known]
        agreement.add(other, logits)
        gathered.add(logits)
        of_these = targets[start : start + step]
        is_target = of_these >= 0
        lost.append(compute_losses(logits[is_target], of_these[is_target]))
        other_lost.append(compute_losses(other[is_target], of_these[is_target]))
        last = list_next_tokens(logits[-1], given)
    perplexities = [compute_perplexity(np.concatenate(each)) for each in (lost, other_lost)]
    own_one, other_one = perplexities if given.is_text else (None, None)
    divergence = replace(
        summarize(agreement.divergences),
        top_1=agreement.agreed / len(own) if len(own) else None,
        reference_perplexity=other_one,
    )
    return Predictions(divergence, own_one, last, gathered.figure())


_PERPLEXITY, _DIVERGENCE = "the perplexity", "the mean KL divergence"


def report_unjudged(request: Request, why: str) -> Iterator[Problem]:
    """Yield a problem for each limit that could not be checked because the model did not run."""
    if request.max_perplexity is not None:
        yield _report_unchecked(_PERPLEXITY, request.max_perplexity, why)
    if request.max_divergence is not None:
        yield _report_unchecked(_DIVERGENCE, request.max_divergence, why)


def _report_unchecked(figure: str, limit: float, why: str) -> Problem:
    text = f"the limit of {limit:g} for {figure} could not be checked: {why}"
    return Problem(where="", text=text)


def check_perplexity(
    request: Request, given: Prompt, perplexity: float | None, *, has_logits: bool
) -> Iterator[Problem]:
    """Yield a problem if the perplexity is above the limit, or could not be measured."""
    limit = request.max_perplexity
    if limit is None:
        return
    why = ""
    if not has_logits:
        why = "an encoder has none"
    elif not given.is_text:
        why = "the model ran on random tokens; give a text, or token ids of one"
    elif perplexity is None:
        why = "the model gives no finite logits"
    elif perplexity > limit:
        yield Problem(
            where="", text=f"the perplexity on {given.source} is {perplexity:.4g}, above {limit:g}"
        )
    if why:
        yield _report_unchecked(_PERPLEXITY, limit, why)


def check_divergence(
    request: Request, divergence: Divergence | None, *, has_logits: bool
) -> Iterator[Problem]:
    """Yield a problem if the mean divergence is above the limit, or could not be measured."""
    limit = request.max_divergence
    if limit is None:
        return
    if divergence is None:
        yield _report_unchecked(_DIVERGENCE, limit, "the reference did not run")
    elif divergence.mean is None:
        why = "not all layers ran" if has_logits else "an encoder has none"
        yield _report_unchecked(_DIVERGENCE, limit, why)
    elif not divergence.mean <= limit:
        text = (
            f"the mean KL divergence from the reference is {divergence.mean:.4g} nats, above "
            f"{limit:g}"
        )
        yield Problem(where="", text=text)
