"""Measures and judges a model's outputs, alone and compared with those of a reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.verify.figures import (
    Activation,
    Divergence,
    DivergenceBin,
    ForwardFigures,
    NextToken,
)
from weightctl.verify.results import Problem
from weightctl.verify.run.parts import OUTPUT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.device import DeviceRef
    from weightctl.verify.run.parts import Running
    from weightctl.verify.run.prompt import Prompt

    F64 = NDArray[np.float64]
    from collections.abc import Iterator, Sequence

    from weightctl.verify.request import Request


class ActivationSums:
    """Sums over a part's output, which is added in chunks.

    Infinite and NaN values are counted, but not summed.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._squares, self._greatest = 0.0, 0.0
        self._finite, self._nonfinite = 0, 0

    def add(self, x: F32) -> None:
        """Add values, of any shape."""
        if not x.size:
            return
        # Squares of large float32 values overflow float32.
        with np.errstate(invalid="ignore", over="ignore"):
            squares = np.einsum("i,i->", x.reshape(-1), x.reshape(-1), dtype=np.float64)
            greatest = float(np.abs(x).max())
        if not (np.isfinite(squares) and np.isfinite(greatest)):
            kept = x[np.isfinite(x)].astype(np.float64)
            self._nonfinite += x.size - kept.size
            squares, greatest = (kept**2).sum(), float(np.abs(kept).max(initial=0.0))
            self._finite += kept.size
        else:
            self._finite += x.size
        self._squares += float(squares)
        self._greatest = max(self._greatest, greatest)

    def figure(self) -> Activation:
        rms = (self._squares / self._finite) ** 0.5 if self._finite else 0.0
        return Activation(
            name=self._name, rms=rms, greatest=self._greatest, nonfinite=self._nonfinite
        )


def measure_activation(name: str, x: F32, mask: NDArray[np.bool_]) -> Activation:
    """Return the figure of a part's output at the positions where the mask is true."""
    gathered = ActivationSums(name)
    gathered.add(x[mask])
    return gathered.figure()


def measure_usual_size(x: F32, mask: NDArray[np.bool_]) -> float:
    """Return the median of the root mean squares at the positions where the mask is true.

    In healthy models a few positions, such as the first, have values that are thousands of times
    larger; the median ignores them. The result is infinite if most positions have values that are
    not finite.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        sizes = np.sqrt(np.square(x[mask], dtype=np.float64).mean(-1))
    return float(np.median(np.where(np.isnan(sizes), np.inf, sizes)))


_MOST_BYTES = 64 * 2**20


def count_positions(vocabulary: int) -> int:
    """Return the number of positions whose float32 logits fit in 64 MiB, at least 1."""
    return max(1, _MOST_BYTES // (4 * max(1, vocabulary)))


def compute_losses(logits: F32, targets: NDArray[np.int64], least: F64 | None = None) -> F64:
    """Return the loss of each target, in nats: logits [n, vocabulary], targets [n] -> [n].

    `least` is the result of `_compute_least_losses`, if already computed. Sums are float64. If a
    position has NaN or positive infinite logits, its loss is NaN.
    """
    least = _compute_least_losses(logits) if least is None else least
    with np.errstate(invalid="ignore", over="ignore"):
        own = np.take_along_axis(logits, targets[:, None], -1)[:, 0]
        found: F64 = least + (logits.max(-1) - own)
    return found


def _compute_least_losses(logits: F32) -> F64:
    """Return the loss of each position's most likely token, in nats: [n, vocabulary] -> [n]."""
    found = np.empty(len(logits), np.float64)
    # A few rows at a time fit in the processor's cache.
    step = max(1, count_positions(logits.shape[-1]) // 64)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(logits), step):
            rows = logits[start : start + step]
            total = np.exp(rows - rows.max(-1, keepdims=True)).sum(-1, dtype=np.float64)
            found[start : start + step] = np.log(total)
    return found


class Expectations(NamedTuple):
    """What a model expects at each position: float64[n].

    - `entropies`: the entropy of its prediction, in nats. The losses of a model that knows the text
      have the same mean.
    - `tails`: the probability of the target and of all tokens that are not more likely. For a model
      that knows the text, a share `p` of them is below `p`, at most.
    """

    entropies: F64
    tails: F64


def compute_expectations(logits: F32, targets: NDArray[np.int64]) -> Expectations:
    """Return what logits [n, vocabulary] expect, and how likely targets [n] are."""
    with np.errstate(invalid="ignore", over="ignore"):  # of logits that are not finite
        shifted = np.maximum(logits - logits.max(-1, keepdims=True), _LEAST_LOGIT)
    weights = np.exp(shifted)
    total = weights.sum(-1, dtype=np.float64)
    own = np.take_along_axis(weights, targets[:, None], -1)
    tails = np.where(weights <= own, weights, 0).sum(-1, dtype=np.float64) / total
    mean = np.einsum("nv,nv->n", weights, shifted, dtype=np.float64) / total
    return Expectations(np.log(total) - mean, tails)


def compute_log_probabilities(logits: F32) -> F64:
    """Return the logarithms of the softmax along the last axis, in float64."""
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = logits.astype(np.float64)
        shifted -= shifted.max(-1, keepdims=True)
        shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def compute_perplexity(all_losses: F64) -> float | None:
    """Return the exponential of the mean loss, infinite if it overflows.

    Return None if there are no losses, or if a loss is not finite.
    """
    if not all_losses.size or not np.isfinite(all_losses).all():
        return None
    with np.errstate(over="ignore"):
        return float(np.exp(all_losses.mean()))


_NEXT = 5
# Differences below this fraction of the values are float32 rounding.
_ALIKE = 1e-6
# The largest loss, in nats, of a token that counts as certain.
_CERTAIN = 1e-5

# A difference of logits at which the less likely token has no probability in float32.
_LEAST_LOGIT = np.float32(-1e4)
# A model is surprised by a text of at least `_FEWEST` targets if `_SURPRISING` of them are less
# likely than `_RARE`, and if its perplexity is `_TIMES` that of its own predictions. Measured with
# SmolLM2-135M: at most 1.8 % of the targets of texts in 21 languages, also in Q2_K; 5 % with a
# tenth of the ids of the vocabulary permuted, and then perplexity is 2.4 to 3 times as large.
_FEWEST, _RARE, _SURPRISING, _TIMES = 64, 1e-3, 0.03, 2.0

# Models with smaller vocabularies, as in tests or with special alphabets, need not know English.
_LEAST_VOCABULARY = 256


def describe_run(running: Running, device: DeviceRef, given: Prompt) -> ForwardFigures:
    """Return the figures of a run before anything is measured: what ran, and where."""
    grid = running.grid
    return ForwardFigures(
        source=given.source,
        device=str(device),
        tp=grid.tp,
        ep=grid.ep,
        pp=grid.pp,
        tokens=given.count,
        windows=len(given.ids),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The results of the last part of a model; empty if that part did not run."""

    figures: tuple[Activation, ...] = ()
    problems: tuple[Problem, ...] = ()
    perplexity: float | None = None
    next_tokens: tuple[NextToken, ...] = ()
    notes: tuple[str, ...] = ()


def run_output(running: Running, x: F32, given: Prompt, *, must_make_sense: bool = False) -> Ending:
    """Compute and judge the logits from the last layer's output, a few positions at a time.

    If the perplexity is worse than chance, the result has a note, since the text may be unusual.
    With `must_make_sense`, which is for plain English, it has a problem instead, and also if the
    perplexity is far above what the model itself expects.
    """
    if not running.has_logits:
        return _judge_states(running.end(x), given)
    rows, targets = x[given.mask], list_targets(given)
    gathered, judged = ActivationSums(OUTPUT), _Judged()
    must_make_sense &= running.vocabulary >= _LEAST_VOCABULARY
    expected: list[Expectations] = []
    step = count_positions(running.vocabulary)
    found: list[F64] = []
    last: tuple[NextToken, ...] = ()
    for start in range(0, len(rows), step):
        logits = running.end(rows[None, start : start + step])[0]
        least, of_these = _compute_least_losses(logits), targets[start : start + step]
        gathered.add(logits)
        judged.add(logits, least)
        # Positions without a target have the first token as a placeholder, and are left out.
        lost = compute_losses(logits, np.maximum(of_these, 0), least)
        found.append(lost[of_these >= 0])
        if must_make_sense:
            expected.append(compute_expectations(logits[of_these >= 0], of_these[of_these >= 0]))
        if start + step >= len(rows):
            last = list_next_tokens(logits[-1], given)
    figure = gathered.figure()
    ppl = None if figure.nonfinite else compute_perplexity(np.concatenate(found))
    # Random tokens cannot be predicted better than chance.
    is_lost = given.is_text and ppl is not None and ppl > running.vocabulary
    has_several = len(np.unique(given.ids[given.mask])) > 1
    text = _describe_nonfinite(figure) or judged.wrong(has_several=has_several, is_lost=is_lost)
    problems = [Problem(where=OUTPUT, text=text)] if text else []
    is_lost = is_lost and not text
    if must_make_sense and given.is_text and ppl is not None and not text:
        text = _judge_perplexity(ppl, running) if is_lost else _judge_surprise(ppl, expected)
        problems += [Problem(where="", text=text)] if text else []
        is_lost = False
    notes = (
        (f"the prediction is worse than guessing among {running.vocabulary:,} tokens",)
        if is_lost
        else ()
    )
    return Ending(
        figures=(figure,),
        problems=tuple(problems),
        perplexity=ppl if given.is_text else None,
        next_tokens=() if figure.nonfinite else last,
        notes=notes,
    )


def _judge_surprise(ppl: float, expected: list[Expectations]) -> str:
    """Return what is wrong with a text that is unlikely to a model, empty if it is not."""
    entropies, tails = map(np.concatenate, zip(*expected, strict=True))
    share, own = float((tails < _RARE).mean()), float(np.exp(entropies.mean()))
    if len(tails) < _FEWEST or share < _SURPRISING or ppl < _TIMES * own:
        return ""
    return (
        f"perplexity {ppl:.3g} on plain English is far above the {own:.3g} that the model's own "
        f"predictions allow, and {share:.0%} of the tokens are nearly impossible to it: check "
        "that the tokenizer is that of this model, with its vocabulary in the right order; then "
        "look for wrong config values or swapped weights"
    )


def _judge_perplexity(ppl: float, running: Running) -> str:
    return (
        f"perplexity {ppl:.3g} on plain English is worse than guessing among "
        f"{running.vocabulary:,} tokens: the model does not work; without another problem, "
        "look for wrong config values (norm epsilon, RoPE theta, number of heads) or "
        "swapped weights"
    )


def list_targets(given: Prompt) -> NDArray[np.int64]:
    """Return the next token of each position that is not padding; -1 at the end of a window."""
    after = np.full(given.ids.shape, -1, np.int64)
    after[:, :-1] = np.where(given.mask[:, 1:], given.ids[:, 1:], -1)
    return after[given.mask]


def list_next_tokens(logits: F32, given: Prompt) -> tuple[NextToken, ...]:
    """Return the most likely next tokens for one position's logits, most likely first.

    Return none if the logits are not finite.
    """
    if not np.isfinite(logits).all():
        return ()
    logarithms = compute_log_probabilities(logits)
    likeliest = np.argsort(-logarithms, kind="stable")[:_NEXT]
    return tuple(
        NextToken(
            token=int(token),
            text=given.text_of(int(token)),
            probability=float(np.exp(logarithms[token])),
        )
        for token in likeliest
    )


class _Judged:
    """Judges the logits of many positions, which are added in chunks."""

    def __init__(self) -> None:
        self._first: F32 | None = None
        self._differs, self._spreads = False, False
        self._certain, self._count = 0, 0

    def add(self, logits: F32, least: F64) -> None:
        """Add the logits of more positions, and the losses of their most likely tokens."""
        first = logits[0] if self._first is None else self._first
        self._first = first.copy()
        with np.errstate(invalid="ignore", over="ignore"):
            smallest = _ALIKE * np.abs(first).max()
            # In a healthy model, the first rows are enough, and the search ends there.
            self._differs = self._differs or any(
                bool((np.abs(row - first) > smallest).any()) for row in logits
            )
            self._spreads = self._spreads or any(
                bool(row.max() - row.min() > smallest) for row in logits
            )
        self._certain += int((least < _CERTAIN).sum())
        self._count += len(logits)

    def wrong(self, *, has_several: bool, is_lost: bool) -> str:
        """Describe what is wrong with the logits; empty if they look right.

        `has_several` says whether the text has different tokens, and `is_lost` whether the model
        predicts the text worse than chance.
        """
        if not self._spreads:
            return "all tokens are equally probable, at every position"
        if not self._differs and has_several:
            return "the prediction is the same after every text"
        if is_lost and self._certain > 0.9 * self._count:
            return "the prediction is certain and wrong at nearly every position"
        return ""


def _judge_states(states: F32, given: Prompt) -> Ending:
    figure = measure_activation(OUTPUT, states, given.mask)
    text = _describe_nonfinite(figure)
    if not text and len(np.unique(given.ids[given.mask])) > 1:
        rows = states[given.mask]
        if np.abs(rows - rows[0]).max() <= _ALIKE * np.abs(rows).max():
            text = "the states are the same for every token and text"
    problems = (Problem(where=OUTPUT, text=text),) if text else ()
    return Ending(figures=(figure,), problems=problems)


def _describe_nonfinite(figure: Activation) -> str:
    if not figure.nonfinite:
        return ""
    return f"{figure.nonfinite:,} of its values are NaN or infinite, and its input is finite"


# Two models' predictions of the next tokens, compared with each other and with limits.


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


def count_by_bound(numbers: F64, bounds: Sequence[float] = _BOUNDS) -> tuple[DivergenceBin, ...]:
    """Return each upper bound with the number of values between the previous bound and it.

    A value that equals a bound counts for the next bound. If there are values beyond the last
    bound, an infinite bound is appended.
    """
    edges = [-np.inf, *bounds, np.inf]
    places = np.searchsorted(edges, numbers, side="right") - 1
    counts = np.bincount(np.minimum(places, len(bounds)), minlength=len(bounds) + 1).tolist()
    bins = [*map(DivergenceBin, [*bounds, float("inf")], counts)]
    return tuple(bins if counts[-1] else bins[:-1])


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
