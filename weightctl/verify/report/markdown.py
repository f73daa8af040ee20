"""A report as Markdown, for an issue or a model's card; nothing that a file says becomes markup."""

from __future__ import annotations

import re
from math import isfinite, log10
from typing import TYPE_CHECKING

from weightctl import __version__
from weightctl.text.wording import number, percent, pluralize, printable
from weightctl.verify.figures import ForwardFigures, ValuesFigures
from weightctl.verify.ranking import (
    choose_title,
    excess_of,
    ratio_to_usual,
    sort_strangest_first,
    sort_worst_first,
)
from weightctl.verify.report.advice import list_remedies
from weightctl.verify.report.phrases import (
    list_facts,
    say_verdict,
    shorten,
    show_encodings,
    show_shape,
    show_spaces,
    show_times,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.verify.figures import Activation, Divergence, MatrixGain, NextToken
    from weightctl.verify.results import Problem, Report


__all__ = ["escape_text", "quote_code", "render_page"]

_WORST, _GAINS, _LAYERS = 12, 20, 40
_BARS = "▁▂▃▄▅▆▇█"
# What begins markup, a link or a mention; an underscore between letters does not.
_SIGNS = re.compile(r"[\\`*\[\]<>~&#$@!]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# What makes a list or a heading of a line that it begins.
_FIRST = re.compile(r"[-+=](?=[-=\s]|$)|\d+[.)](?=\s|$)")
_LONGEST = 120


def render_page(report: Report) -> str:
    """Return a report as a page of Markdown, as GitHub reads it."""
    sections = [
        _render_header(report),
        _render_problems(report.problems),
        _render_advice(list_remedies(report)),
        *_render_forward(report.figures(ForwardFigures)),
        *_render_values(report.figures(ValuesFigures)),
        _render_notes(report.notes),
        f"Written by weightctl {__version__} verify.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _render_header(report: Report) -> str:
    against = f", against {quote_code(report.reference)}" if report.reference else ""
    rows = [
        (
            quote_code(name),
            result.verdict,
            escape_text(result.summary),
            f"{report.seconds[name]:.2f}",
        )
        for name, result in report.results.items()
    ]
    lines = [
        f"# {quote_code(report.path)}: {say_verdict(report)}",
        f"{escape_text(report.description)}{against}"
        if report.description
        else against.strip(", "),
        _render_table(["Check", "Verdict", "Looked at", "Seconds"], rows, right={3}),
    ]
    return "\n\n".join(line for line in lines if line)


def _render_problems(problems: Sequence[Problem]) -> str:
    if not problems:
        return ""
    return "\n".join(["## What is wrong", "", *map(_render_problem, problems)])


def _render_advice(advice: Sequence[str]) -> str:
    listed = [f"- {escape_text(each)}" for each in advice]
    return "\n".join(["## What to do next", "", *listed]) if advice else ""


def _render_problem(problem: Problem) -> str:
    where = f"{quote_code(problem.where)}: " if problem.where else ""
    told = f"- {where}{escape_text(problem.statement)} *({escape_text(problem.check)})*"
    if problem.hint:
        told = f"{told}\n  **Hint:** {escape_text(problem.hint)}"
    if problem.cause is None:
        return told
    name, text = problem.cause
    return f"{told}\n  **Likely cause:** {escape_text(text)} ({quote_code(name)})"


def _render_forward(figures: ForwardFigures | None) -> Iterator[str]:
    if figures is None:
        return
    known = list_facts(figures)
    if known or figures.next_tokens:
        yield "## What the model says"
    if known:
        yield _render_table(
            ["", "", ""], [list(map(escape_text, fact)) for fact in known], right={1}
        )
    if figures.next_tokens:
        yield _render_next_tokens(figures.next_tokens)
    if figures.divergence is not None and figures.divergence.layers:
        yield from _render_divergence(figures.divergence)
    if figures.activations:
        yield from _render_activations(figures.activations)
    if figures.matrices:
        yield from _render_matrices(figures.matrices)


def _render_next_tokens(tokens: Sequence[NextToken]) -> str:
    rows = [
        (
            str(token.token),
            quote_code(show_spaces(token.text)) if token.text else "",
            percent(token.probability),
        )
        for token in tokens
    ]
    return _render_table(["Next token", "Text", "Probability"], rows, right={0, 2})


def _render_activations(activations: Sequence[Activation]) -> Iterator[str]:
    rms = [part.rms for part in activations]
    yield "## Activations"
    sound = [value for value in rms if isfinite(value)]
    ends = f"{number(min(sound))} to {number(max(sound))}" if any(sound) else "none of it finite"
    yield f"`{_draw_curve(rms)}` root mean square of what each part gives, {ends} (log scale)"
    lost = [part for part in activations if part.nonfinite]
    if lost:
        rows = [(quote_code(part.name), f"{part.nonfinite:,}") for part in lost[:_LAYERS]]
        yield _render_table(["Part", "NaN or infinite"], rows, right={1})


def _render_matrices(matrices: Sequence[MatrixGain]) -> Iterator[str]:
    rows = [
        (
            quote_code(matrix.name),
            show_shape(matrix.shape),
            number(matrix.gain),
            show_times(ratio_to_usual(matrix.gain, matrix.usual)),
        )
        for matrix in sort_strangest_first(matrices)[:_GAINS]
    ]
    yield "## Matrices"
    count = f"the {len(rows)} farthest from usual, of {len(matrices):,}"
    yield f"How long what each makes of a random unit vector is: {count}."
    yield _render_table(["Matrix", "Shape", "Length", "Times usual"], rows, right={2, 3})


def _render_divergence(divergence: Divergence) -> Iterator[str]:
    values = [part.divergence for part in divergence.layers]
    yield "## Divergence from the reference, part by part"
    yield f"`{_draw_curve(values)}` from the embedding to the output (log scale)"
    order = sorted(
        divergence.layers,
        key=lambda part: (part.is_problem, ratio_to_usual(part.divergence, part.expected)),
        reverse=True,
    )
    most = max(_WORST, sum(part.is_problem for part in order))
    rows = [
        (
            quote_code(part.name),
            percent(part.divergence),
            percent(part.expected),
            show_times(ratio_to_usual(part.divergence, part.expected)),
            "problem" if part.is_problem else "",
        )
        for part in order[: min(most, _LAYERS)]
    ]
    yield _render_table(["Part", "Divergence", "Usual", "Times usual", ""], rows, right={1, 2, 3})


def _render_values(figures: ValuesFigures | None) -> Iterator[str]:
    if figures is None or not figures.tensors:
        return
    ranked = sort_worst_first(figures.tensors)
    rows = [
        (
            quote_code(error.name),
            escape_text(show_encodings(error)),
            percent(error.relative_rmse),
            percent(error.expected),
            show_times(excess_of(error)),
            show_times(error.worst),
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
    yield f"## {choose_title(ranked).capitalize()}, of {pluralize(len(ranked), 'pair')}"
    yield _render_table(titles, rows, right={2, 3, 4, 5, 6})


def _render_notes(notes: Sequence[str]) -> str:
    return (
        "\n".join(["## Notes", "", *(f"- {escape_text(note)}" for note in notes)]) if notes else ""
    )


def _render_table(titles: list[str], rows: Sequence[Sequence[str]], right: set[int]) -> str:
    rules = ["--:" if place in right else ":--" for place in range(len(titles))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [titles, rules, *rows])


def _draw_curve(values: Sequence[float]) -> str:
    """Return a line of bars, whose heights are those of the values' logarithms."""
    sound = [log10(value) for value in values if isfinite(value) and value > 0]
    low, high = min(sound, default=0.0), max(sound, default=0.0)

    def bar(value: float) -> str:
        if not isfinite(value):
            return "!"
        height = (log10(value) - low) / (high - low) if value > 0 and high > low else 0.0
        return _BARS[round(height * (len(_BARS) - 1))]

    return "".join(map(bar, values))


def escape_text(written: str) -> str:
    """Return a text of ours in which what stands between two backticks is code, in one line."""
    return "<br>".join(_escape_line(line.strip()) for line in written.split("\n") if line.strip())


def quote_code(shown: str, most: int = _LONGEST) -> str:
    """Return a text as code of at most so many characters, which nothing in it ends."""
    shown = shorten(shown, max(most, 1))
    if "|" in shown:
        # In a table it would end the cell, and how it is escaped there differs between readers.
        return f"<code>{''.join(map(_escape_char, shown))}</code>"
    if not shown.strip():
        return f'"{shown}"'
    longest = max(map(len, re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    room = " " if longest else ""
    return f"{fence}{room}{shown}{room}{fence}"


def _escape_line(line: str) -> str:
    pieces = line.split("`")
    if len(pieces) % 2 == 0:
        return _escape_first(line)
    first, *others = pieces
    return _escape_first(first) + "".join(
        quote_code(piece) if number % 2 else _escape_signs(piece)
        for number, piece in enumerate(others, start=1)
        if piece
    )


def _escape_first(line: str) -> str:
    """Return text that may stand at the beginning of a line."""
    begins = _FIRST.match(line)
    if begins is None:
        return _escape_signs(line)
    last = begins.end() - 1
    return f"{line[:last]}\\{line[last]}{_escape_signs(line[last + 1 :])}"


def _escape_signs(line: str) -> str:
    return _SIGNS.sub(r"\\\g<0>", printable(line)).replace("|", "&#124;")


def _escape_char(char: str) -> str:
    return char if char.isalnum() or char in " ./-" else f"&#{ord(char)};"
