"""Formats figures and verdicts as text for reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.page.labels import TIMES, shorten
from weightctl.text.wording import number, percent, pluralize
from weightctl.verify.report.outline import Fact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.verify.figures import (
        Divergence,
        ForwardFigures,
        LayerDivergence,
        TensorError,
    )
    from weightctl.verify.results import Report


def show_shape(shape: Sequence[int]) -> str:
    """Return a shape, outermost dimension first, with multiplication signs."""
    return f" {TIMES} ".join(map(str, shape))


def say_verdict(report: Report) -> str:
    """Return the overall verdict in one line."""
    ran = sum(not result.skipped for result in report.results.values())
    noun = "difference" if report.comparison else "problem"
    found = len(report.problems) + len(report.differences)
    if found:
        with_some = sum(
            bool(result.problems or result.differences) for result in report.results.values()
        )
        return f"{pluralize(found, noun)} in {with_some:,} of {pluralize(ran, 'check')}"
    left = len(report.results) - ran
    skipped = f", {left} skipped" if left else ""
    return f"no {noun}s found in {pluralize(ran, 'check')}{skipped}"


def list_facts(figures: ForwardFigures) -> list[Fact]:
    """Return facts about the run of a model: name, number and meaning."""
    found: list[Fact] = []
    divergence = figures.divergence
    if figures.perplexity is not None:
        other = divergence.reference_perplexity if divergence else None
        against = (
            f"the reference has {number(other, 4)}" if other is not None else "lower is better"
        )
        found.append(Fact("perplexity", number(figures.perplexity, 4), against))
    return found + (_list_divergence(divergence) if divergence else [])


def _list_divergence(divergence: Divergence) -> list[Fact]:
    found: list[Fact] = []
    if divergence.mean is not None:
        found.append(Fact("mean KL", number(divergence.mean), "nats per position"))
    if divergence.percentile_99 is not None:
        found.append(Fact("99th percentile", number(divergence.percentile_99), "nats"))
    if divergence.greatest is not None:
        found.append(Fact("largest KL", number(divergence.greatest), "nats"))
    if divergence.top_1 is not None:
        found.append(Fact("top-1 agreement", percent(divergence.top_1), "same most probable token"))
    if divergence.cosine is not None:
        found.append(Fact("lowest cosine", number(divergence.cosine, 5), "between states"))
    return found


def say_all_usual(layers: Sequence[LayerDivergence]) -> str:
    """Return a sentence for parts that differ as expected, which names the largest difference."""
    most = max(layers, key=lambda part: part.divergence)
    if most.divergence == 0:
        return "The output of every part equals that of the reference."
    usual = f", expected {percent(most.expected)}" if most.expected > 0 else ""
    return (
        "No part differs from the reference by more than expected. The largest difference "
        f"is in `{shorten(most.name, 60)}`, {percent(most.divergence)}{usual}."
    )


def show_encodings(error: TensorError) -> str:
    """Return a tensor's encoding, and the reference's encoding if it differs."""
    if error.encoding == error.reference_encoding:
        return error.encoding
    return f"{error.encoding}, reference {error.reference_encoding}"


def show_spaces(text: str) -> str:
    """Return a token's text with visible spaces."""
    return text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")
