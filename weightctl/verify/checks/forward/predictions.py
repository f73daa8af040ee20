"""Compares two models' predictions of the next tokens, a few positions at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weightctl.verify.checks.forward.divergence import Agreement
from weightctl.verify.run.activations import ActivationSums
from weightctl.verify.run.likelihood import compute_losses, compute_perplexity, count_positions
from weightctl.verify.run.output import list_next_tokens, list_targets
from weightctl.verify.run.parts import OUTPUT

if TYPE_CHECKING:
    from weightctl.codecs.base import F32
    from weightctl.verify.figures import Activation, NextToken
    from weightctl.verify.run.likelihood import F64
    from weightctl.verify.run.parts import Running
    from weightctl.verify.run.prompt import Prompt

__all__ = ["Predictions", "predict"]


@dataclass(frozen=True, slots=True)
class Predictions:
    """The agreement of two models' predictions, and how well each predicts the text.

    Perplexities are None if there is nothing to predict, if the tokens are not text, and if logits
    are not finite.
    """

    agreement: Agreement
    perplexity: float | None
    reference_perplexity: float | None
    next_tokens: tuple[NextToken, ...]
    activation: Activation


def predict(
    subject: Running, reference: Running, own: F32, wanted: F32, given: Prompt
) -> Predictions:
    """Return the predictions of both models from the outputs of their last layers.

    `own` and `wanted` are [windows, positions, hidden]. Positions without a token are ignored, and
    so are tokens that only one of the models has.
    """
    own, wanted, targets = own[given.mask], wanted[given.mask], list_targets(given)
    known = min(subject.vocabulary, reference.vocabulary)
    agreement, gathered = Agreement(), ActivationSums(OUTPUT)
    lost: list[F64] = []
    other_lost: list[F64] = []
    last: tuple[NextToken, ...] = ()
    # The memory limit for the logits of both models.
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
    return Predictions(agreement, own_one, other_one, last, gathered.figure())
