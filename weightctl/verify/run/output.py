"""Runs a model's output, and judges it: logits, likelihood of the text, and next tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weightctl.verify.figures import NextToken
from weightctl.verify.results import Problem
from weightctl.verify.run.activations import ActivationSums, measure_activation
from weightctl.verify.run.likelihood import (
    compute_least_losses,
    compute_log_probabilities,
    compute_losses,
    compute_perplexity,
    count_positions,
)
from weightctl.verify.run.parts import OUTPUT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.verify.figures import Activation
    from weightctl.verify.run.likelihood import F64
    from weightctl.verify.run.parts import Running
    from weightctl.verify.run.prompt import Prompt

__all__ = ["Ending", "list_next_tokens", "list_targets", "run_output"]

_NEXT = 5
# Differences below this fraction of the values are float32 rounding.
_ALIKE = 1e-6
# The largest loss, in nats, of a token that counts as certain.
_CERTAIN = 1e-5

# Vocabularies of test models, or of special alphabets, need not contain English.
_LEAST_VOCABULARY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The results of a model's output; empty if it did not run."""

    figures: tuple[Activation, ...] = ()
    problems: tuple[Problem, ...] = ()
    perplexity: float | None = None
    next_tokens: tuple[NextToken, ...] = ()
    notes: tuple[str, ...] = ()


def run_output(running: Running, x: F32, given: Prompt, *, must_make_sense: bool = False) -> Ending:
    """Run the output on the last layer's output, a few positions at a time.

    A perplexity worse than chance is a note, since the text may be unusual. It is a problem if a
    model `must_make_sense` of the text, which is plain English.
    """
    if not running.has_logits:
        return _judge_states(running.end(x), given)
    rows, targets = x[given.mask], list_targets(given)
    gathered, judged = ActivationSums(OUTPUT), _Judged()
    step = count_positions(running.vocabulary)
    found: list[F64] = []
    last: tuple[NextToken, ...] = ()
    for start in range(0, len(rows), step):
        logits = running.end(rows[None, start : start + step])[0]
        least, of_these = compute_least_losses(logits), targets[start : start + step]
        gathered.add(logits)
        judged.add(logits, least)
        # Positions without a target have the first token as a placeholder, and are left out.
        lost = compute_losses(logits, np.maximum(of_these, 0), least)
        found.append(lost[of_these >= 0])
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
    if is_lost and must_make_sense and running.vocabulary >= _LEAST_VOCABULARY:
        is_lost = False
        problems.append(Problem(where="", text=_judge_perplexity(ppl, running)))
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


def _judge_perplexity(ppl: float | None, running: Running) -> str:
    return (
        f"perplexity {ppl:.3g} on plain English is worse than guessing among "
        f"{running.vocabulary:,} tokens: the model does not work; without another problem, "
        "look for wrong config values (norm epsilon, RoPE theta, number of heads) or "
        "swapped weights"
    )


def list_targets(given: Prompt) -> NDArray[np.int64]:
    """Return the token that follows each position of the mask in its window, -1 if none does."""
    after = np.full(given.ids.shape, -1, np.int64)
    after[:, :-1] = np.where(given.mask[:, 1:], given.ids[:, 1:], -1)
    return after[given.mask]


def list_next_tokens(logits: F32, given: Prompt) -> tuple[NextToken, ...]:
    """Return the most likely next tokens by a position's logits, most likely first."""
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
    """Properties of the logits of many positions, added in chunks."""

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
            # In a healthy model, the first rows settle this.
            self._differs = self._differs or any(
                bool((np.abs(row - first) > smallest).any()) for row in logits
            )
            self._spreads = self._spreads or any(
                bool(row.max() - row.min() > smallest) for row in logits
            )
        self._certain += int((least < _CERTAIN).sum())
        self._count += len(logits)

    def wrong(self, *, has_several: bool, is_lost: bool) -> str:
        """Return what is wrong with the logits, empty if nothing is.

        `has_several` says whether the tokens of the text differ, and `is_lost` whether the model
        predicts it worse than chance.
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
