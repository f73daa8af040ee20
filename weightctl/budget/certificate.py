"""Measurement of a quantized model against its source: divergence, agreement, perplexity."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.verify.checks.forward.predictions import predict
from weightctl.verify.run.parts import Running

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.budget.space import SearchSpace
    from weightctl.codecs.base import F32
    from weightctl.verify.run.prompt import Prompt


class Certificate(NamedTuple):
    """What a quantized model was measured to be, against its source, on a text.

    Divergences are in nats. `top_1` is the fraction of positions where both models predict the same
    token. Perplexities are None if the tokens are not text.
    """

    mean: float
    percentile_99: float
    top_1: float
    perplexity: float | None
    source_perplexity: float | None
    tokens: int
    text: str


class SourceJudge:
    """The unquantized model, run once on a text, to compare quantized ones with it."""

    def __init__(self, space: SearchSpace, running: Running, prompt: Prompt) -> None:
        self._space, self._running, self._prompt = space, running, prompt
        self._wanted = _run(running, prompt)

    def measure(self, types: Mapping[str, str]) -> Certificate:
        """Run the model with tensors in these types, by name, and compare the predictions."""
        quantized = Running(self._space.view(types))
        own = _run(quantized, self._prompt)
        found = predict(quantized, self._running, own, self._wanted, self._prompt)
        divergence = found.divergence
        return Certificate(
            mean=_number(divergence.mean),
            percentile_99=_number(divergence.percentile_99),
            top_1=_number(divergence.top_1),
            perplexity=found.perplexity,
            source_perplexity=divergence.reference_perplexity,
            tokens=self._prompt.count,
            text=self._prompt.source,
        )


def _run(running: Running, prompt: Prompt) -> F32:
    """Return the output of the last layer."""
    x, beside = running.begin(prompt.ids, prompt.mask)
    for number in range(running.layers):
        x = running.layer(number, x, beside)
    return x


def _number(given: float | None) -> float:
    return float("nan") if given is None else given
