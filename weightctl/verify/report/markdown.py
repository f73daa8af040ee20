"""A report as Markdown, for an issue or a model's card."""

from __future__ import annotations

from math import isfinite, log10
from typing import TYPE_CHECKING

from weightctl import __version__
from weightctl.verify.figures import ForwardFigures, ValuesFigures
from weightctl.verify.report.findings import finding
from weightctl.verify.report.markdown_text import code, text
from weightctl.verify.report.phrases import (
    encodings,
    facts,
    shape_text,
    times,
    verdict,
    verdict_of_check,
    visible,
)
from weightctl.verify.report.ranking import excess, ratio, strangest, title_of, worst_first
from weightctl.verify.report.remedies import remedies
from weightctl.wording import counted, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.verify.figures import Activation, Divergence, MatrixGain, NextToken
    from weightctl.verify.problem import Problem
    from weightctl.verify.results import Report

__all__ = ["page"]

_WORST, _GAINS, _LAYERS = 12, 20, 40
_BARS = "▁▂▃▄▅▆▇█"


def page(report: Report) -> str:
    """Return a report as a page of Markdown, as GitHub reads it."""
    sections = [
        _header(report),
        _problems(report.problems),
        _next(remedies(report)),
        *_forward(report.figures(ForwardFigures)),
        *_values(report.figures(ValuesFigures)),
        _notes(report.notes),
        f"Written by weightctl {__version__} verify.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _header(report: Report) -> str:
    against = f", against {code(report.reference)}" if report.reference else ""
    rows = [
        (
            code(name),
            verdict_of_check(result),
            text(result.skipped or finding(result.figures)),
            f"{report.seconds[name]:.2f}",
        )
        for name, result in report.results.items()
    ]
    lines = [
        f"# {code(report.path)}: {verdict(report)}",
        f"{text(report.description)}{against}" if report.description else against.strip(", "),
        _table(["Check", "Verdict", "Looked at", "Seconds"], rows, right={3}),
    ]
    return "\n\n".join(line for line in lines if line)


def _problems(problems: Sequence[Problem]) -> str:
    if not problems:
        return ""
    return "\n".join(["## What is wrong", "", *map(_problem, problems)])


def _next(advice: Sequence[str]) -> str:
    listed = [f"- {text(each)}" for each in advice]
    return "\n".join(["## What to do next", "", *listed]) if advice else ""


def _problem(problem: Problem) -> str:
    where = f"{code(problem.where)}: " if problem.where else ""
    told = f"- {where}{text(problem.said)} *({text(problem.check)})*"
    if problem.hint:
        told = f"{told}\n  **Hint:** {text(problem.hint)}"
    if problem.cause is None:
        return told
    return f"{told}\n  **Likely cause:** {text(problem.cause.text)} ({code(problem.cause.name)})"


def _forward(figures: ForwardFigures | None) -> Iterator[str]:
    if figures is None:
        return
    known = facts(figures)
    if known or figures.next_tokens:
        yield "## What the model says"
    if known:
        yield _table(["", "", ""], [list(map(text, fact)) for fact in known], right={1})
    if figures.next_tokens:
        yield _next_tokens(figures.next_tokens)
    if figures.divergence is not None and figures.divergence.layers:
        yield from _divergence(figures.divergence)
    if figures.activations:
        yield from _activations(figures.activations)
    if figures.matrices:
        yield from _matrices(figures.matrices)


def _next_tokens(tokens: Sequence[NextToken]) -> str:
    rows = [
        (
            str(token.token),
            code(visible(token.text)) if token.text else "",
            percent(token.probability),
        )
        for token in tokens
    ]
    return _table(["Next token", "Text", "Probability"], rows, right={0, 2})


def _activations(activations: Sequence[Activation]) -> Iterator[str]:
    rms = [part.rms for part in activations]
    yield "## Activations"
    sound = [value for value in rms if isfinite(value)]
    ends = f"{number(min(sound))} to {number(max(sound))}" if any(sound) else "none of it finite"
    yield f"`{_curve(rms)}` root mean square of what each part gives, {ends} (log scale)"
    lost = [part for part in activations if part.nonfinite]
    if lost:
        rows = [(code(part.name), f"{part.nonfinite:,}") for part in lost[:_LAYERS]]
        yield _table(["Part", "NaN or infinite"], rows, right={1})


def _matrices(matrices: Sequence[MatrixGain]) -> Iterator[str]:
    rows = [
        (
            code(matrix.name),
            shape_text(matrix.shape),
            number(matrix.gain),
            times(ratio(matrix.gain, matrix.usual)),
        )
        for matrix in strangest(matrices)[:_GAINS]
    ]
    yield "## Matrices"
    count = f"the {len(rows)} farthest from usual, of {len(matrices):,}"
    yield f"How long what each makes of a random unit vector is: {count}."
    yield _table(["Matrix", "Shape", "Length", "Times usual"], rows, right={2, 3})


def _divergence(divergence: Divergence) -> Iterator[str]:
    values = [part.divergence for part in divergence.layers]
    yield "## Divergence from the reference, part by part"
    yield f"`{_curve(values)}` from the embedding to the output (log scale)"
    order = sorted(
        divergence.layers,
        key=lambda part: (part.is_problem, ratio(part.divergence, part.expected)),
        reverse=True,
    )
    most = max(_WORST, sum(part.is_problem for part in order))
    rows = [
        (
            code(part.name),
            percent(part.divergence),
            percent(part.expected),
            times(ratio(part.divergence, part.expected)),
            "problem" if part.is_problem else "",
        )
        for part in order[: min(most, _LAYERS)]
    ]
    yield _table(["Part", "Divergence", "Usual", "Times usual", ""], rows, right={1, 2, 3})


def _values(figures: ValuesFigures | None) -> Iterator[str]:
    if figures is None or not figures.tensors:
        return
    ranked = worst_first(figures.tensors)
    rows = [
        (
            code(error.name),
            text(encodings(error)),
            percent(error.relative_rmse),
            percent(error.expected),
            times(excess(error)),
            times(error.worst),
            number(error.cosine, 5),
            "problem" if error.is_problem else "",
        )
        for error in ranked[:_WORST]
    ]
    titles = [
        "Tensor",
        "Encoding",
        "Relative RMSE",
        "Usual",
        "Times usual",
        "Worst run",
        "Cosine",
        "",
    ]
    yield f"## {title_of(ranked).capitalize()}, of {counted(len(ranked), 'pair')}"
    yield _table(titles, rows, right={2, 3, 4, 5, 6})


def _notes(notes: Sequence[str]) -> str:
    return "\n".join(["## Notes", "", *(f"- {text(note)}" for note in notes)]) if notes else ""


def _table(titles: list[str], rows: Sequence[Sequence[str]], right: set[int]) -> str:
    rules = ["--:" if place in right else ":--" for place in range(len(titles))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [titles, rules, *rows])


def _curve(values: Sequence[float]) -> str:
    """Return a line of bars, whose heights are those of the values' logarithms."""
    sound = [log10(value) for value in values if isfinite(value) and value > 0]
    low, high = min(sound, default=0.0), max(sound, default=0.0)

    def bar(value: float) -> str:
        if not isfinite(value):
            return "!"
        height = (log10(value) - low) / (high - low) if value > 0 and high > low else 0.0
        return _BARS[round(height * (len(_BARS) - 1))]

    return "".join(map(bar, values))
