"""The result of a search: the types, the reasons for them, and the measured certificate."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from weightctl.plan.file_types import GUESSED
from weightctl.plan.recipe_lines import Recipe, RecipeLine
from weightctl.text.documents import NOT_DOCUMENTED
from weightctl.text.wording import number
from weightctl.verify.run.output import predict
from weightctl.verify.run.parts import Running
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.budget.space import SearchSpace
    from weightctl.codecs.base import F32
    from weightctl.verify.run.prompt import Prompt

_KEY = "weightctl.budget"


class MeasuredType(NamedTuple):
    """A type that a tensor could have: its bytes, and the divergence that it causes, in nats."""

    type: str
    bytes: int
    divergence: float


class ChosenType(NamedTuple):
    """The type of a tensor, and all types that it could have."""

    name: str
    type: str
    types: tuple[MeasuredType, ...]


@dataclass(frozen=True, slots=True)
class FoundTypes:
    """The types that a search found for a budget, and what the result was measured to be.

    `limit` is the budget as an option. `bits_per_weight` are those of the whole model.
    `predicted_divergence` is the sum of the divergences of all tensors, in nats. `calibration`
    describes the text on which sensitivities were measured, and `notes` are for the user. `default`
    is the type of further weights of a model directory; for GGUF, it is empty.
    """

    limit: str
    bits_per_weight: float
    predicted_divergence: float
    calibration: str
    certificate: Certificate
    tensors: tuple[ChosenType, ...]
    notes: tuple[str, ...] = field(default=(), metadata=NOT_DOCUMENTED)
    default: str = field(default="", metadata=NOT_DOCUMENTED)

    @property
    def types(self) -> dict[str, str]:
        """The types of the tensors by their names."""
        return {each.name: each.type for each in self.tensors}

    @property
    def toml(self) -> str:
        """The recipe as the text of a TOML file, which --quant reads."""
        bits = f"{self.bits_per_weight:.4f} bits per weight"
        lines = [
            f"# Found by `weightctl convert {self.limit}`: {bits}.",
            *(f"# {line}" for line in describe_certificate(self.certificate)),
            *(["", f'default = "{self.default}"'] if self.default else []),
            "",
            "[types]",
            *(f"'{_pattern(each.name)}' = \"{each.type}\"" for each in self.tensors),
        ]
        return "\n".join(lines) + "\n"


def make_recipe(name: str, types: Mapping[str, str]) -> Recipe:
    """Return the recipe that gives tensors these types by their names, and keeps all others."""
    lines = (RecipeLine(match_name(each), (), kind) for each, kind in types.items())
    file_type = GUESSED if len({*types.values()}) > 1 else None
    return Recipe(name, None, tuple(lines), file_type)


def match_name(name: str) -> re.Pattern[str]:
    """Return the pattern of a tensor's name, which matches no other name."""
    return re.compile(_pattern(name))


def _pattern(name: str) -> str:
    return f"^{re.escape(name)}$"


def make_metadata(budget: str, certificate: Certificate, bits: float) -> dict[str, MetadataValue]:
    """Return the certificate as metadata of the file; its size depends only on the two texts."""
    text, tokens, *_ = certificate
    numbers = {"bits_per_weight": bits, **certificate._asdict()}
    del numbers["text"], numbers["tokens"]
    made = {f"{_KEY}.asked": MetadataValue("string", budget)}
    made |= {
        f"{_KEY}.{name}": MetadataValue("f32", float(value))
        for name, value in numbers.items()
        if value is not None
    }
    made[f"{_KEY}.text"] = MetadataValue("string", text)
    made[f"{_KEY}.tokens"] = MetadataValue("u32", tokens)
    return made


def describe_certificate(given: Certificate) -> list[str]:
    """Return two lines with the measured figures."""
    perplexity = ""
    if given.perplexity is not None and given.source_perplexity is not None:
        before, after = number(given.source_perplexity, 4), number(given.perplexity, 4)
        perplexity = f"; perplexity {before} -> {after}"
    mean, high = number(given.divergence), number(given.divergence_percentile_99)
    same = f"same top token {100 * given.top_1:.1f} %"
    return [
        f"KL divergence {mean} nats (99th percentile {high}), {same}",
        f"measured on {given.tokens:,} tokens of {given.text}{perplexity}",
    ]


# Measurement of a quantized model against its source: divergence, agreement, perplexity.


class Certificate(NamedTuple):
    """What a quantized model was measured to be, against its source, on a text.

    Divergences are in nats. `top_1` is the fraction of positions where both models predict the same
    token. Perplexities are None if the tokens are not text.
    """

    text: str
    tokens: int
    divergence: float
    divergence_percentile_99: float
    top_1: float
    perplexity: float | None
    source_perplexity: float | None


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
            text=self._prompt.source,
            tokens=self._prompt.count,
            divergence=_number(divergence.mean),
            divergence_percentile_99=_number(divergence.percentile_99),
            top_1=_number(divergence.top_1),
            perplexity=found.perplexity,
            source_perplexity=divergence.reference_perplexity,
        )


def _run(running: Running, prompt: Prompt) -> F32:
    """Return the output of the last layer."""
    x, beside = running.begin(prompt.ids, prompt.mask)
    for place in range(running.layers):
        x = running.layer(place, x, beside)
    return x


def _number(given: float | None) -> float:
    return float("nan") if given is None else given
