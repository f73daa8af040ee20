"""Renders a report as Markdown, for an issue or a model card; text from files is escaped."""

from __future__ import annotations

import re
from itertools import chain
from math import isfinite, log10
from typing import TYPE_CHECKING

from weightctl.system import __version__
from weightctl.text.page.markup import shorten
from weightctl.text.wording import printable
from weightctl.verify.report.outline import (
    Bullets,
    Chart,
    Facts,
    OutlineTable,
    Paragraph,
    ProblemList,
    make_outline,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.verify.report.outline import Block, Column, Outline, Section
    from weightctl.verify.results import Problem, Report


_BARS = "▁▂▃▄▅▆▇█"
# Characters that begin markup, a link or a mention. An underscore within a word does not.
_SIGNS = re.compile(r"[\\`*\[\]<>~&#$@!]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# Characters that begin a list or a heading at the beginning of a line.
_FIRST = re.compile(r"[-+=](?=[-=\s]|$)|\d+[.)](?=\s|$)")
_LONGEST = 120


def render_page(report: Report) -> str:
    """Return a report as a page of GitHub-flavored Markdown."""
    outline = make_outline(report)
    blocks = [*_render_header(outline), *chain.from_iterable(map(_render, outline.sections))]
    return "\n\n".join([*blocks, f"Written by weightctl {__version__} verify."]) + "\n"


def _render_header(outline: Outline) -> Iterator[str]:
    yield f"# {quote_code(outline.path)}: {outline.verdict}"
    if outline.description:
        yield escape_text(outline.description)
    if outline.reference:
        yield f"A: {quote_code(outline.path)}"
        yield f"B: {quote_code(outline.reference)}"
    rows = [
        (quote_code(each.name), each.verdict, escape_text(each.summary), f"{each.seconds:.2f}")
        for each in outline.checks
    ]
    yield _join_rows(["Check", "Verdict", "Checked", "Seconds"], rows, right={3})


def _render(section: Section) -> Iterator[str]:
    blocks = [text for block in section.blocks for text in _render_block(block)]
    if blocks:
        yield f"## {section.title}"
        yield from blocks


def _render_block(block: Block) -> Iterator[str]:
    match block:
        case ProblemList():
            yield "\n".join(map(_render_problem, block.problems))
        case Bullets():
            yield "\n".join(f"- {escape_text(each)}" for each in block.items)
        case Paragraph():
            yield escape_text(block.text)
        case Facts():
            yield _join_rows(["", "", ""], [[*map(escape_text, each)] for each in block.facts], {1})
        case OutlineTable():
            yield from () if block.is_folded else _render_table(block)
        case Chart():
            yield from _render_chart(block) if block.values else ()


def _render_chart(chart: Chart) -> Iterator[str]:
    """Yield a curve of bar characters in place of the picture, and the chart's table."""
    yield f"**{chart.title}**"
    if chart.sentence:
        yield escape_text(chart.sentence)
    yield f"`{_draw_curve(chart.values)}` {escape_text(chart.text)}"
    if chart.table is not None:
        yield from _render_table(chart.table)


def _render_table(table: OutlineTable) -> Iterator[str]:
    if table.title:
        yield f"**{table.title}**"
    shown = [place for place, column in enumerate(table.columns) if column.brief]
    columns = [table.columns[place] for place in shown]
    rows = [
        [_mark_cell(row.cells[place], table.columns[place]) for place in shown]
        + ["problem" if row.is_problem else ""] * table.marks_problems
        for row in table.rows
    ]
    titles = [column.title for column in columns] + [""] * table.marks_problems
    right = {place for place, column in enumerate(columns) if column.kind == "number"}
    yield _join_rows(titles, rows, right)


def _mark_cell(text: str, column: Column) -> str:
    """Return names and other texts from files as code, numbers as is, and other text escaped."""
    if column.kind == "name" or (column.kind == "code" and text):
        return quote_code(text)
    return text if column.kind == "number" else escape_text(text)


def _render_problem(problem: Problem) -> str:
    where = f"{quote_code(problem.where)}: " if problem.where else ""
    item = f"- {where}{escape_text(problem.statement)} *({escape_text(problem.check)})*"
    if problem.hint:
        item = f"{item}\n  **Hint:** {escape_text(problem.hint)}"
    if problem.cause is None:
        return item
    name, text = problem.cause
    return f"{item}\n  **Likely cause:** {escape_text(text)} ({quote_code(name)})"


def _join_rows(titles: list[str], rows: Sequence[Sequence[str]], right: set[int]) -> str:
    rules = ["--:" if place in right else ":--" for place in range(len(titles))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [titles, rules, *rows])


def _draw_curve(values: Sequence[float]) -> str:
    """Return a line of bar characters, whose heights are the logarithms of the values."""
    sound = [log10(value) for value in values if isfinite(value) and value > 0]
    low, high = min(sound, default=0.0), max(sound, default=0.0)

    def bar(value: float) -> str:
        if not isfinite(value):
            return "!"
        height = (log10(value) - low) / (high - low) if value > 0 and high > low else 0.0
        return _BARS[round(height * (len(_BARS) - 1))]

    return "".join(map(bar, values))


def escape_text(written: str) -> str:
    """Return a text in one line of Markdown; text between backticks is code, the rest escaped."""
    return "<br>".join(_escape_line(line.strip()) for line in written.split("\n") if line.strip())


def quote_code(shown: str, most: int = _LONGEST) -> str:
    """Return a text as code, shortened to `most` characters; it may contain backticks."""
    shown = shorten(shown, max(most, 1))
    if "|" in shown:
        # A `|` ends the cell of a table, and Markdown renderers differ in how to escape it there.
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
    """Escape a text for the beginning of a line."""
    begins = _FIRST.match(line)
    if begins is None:
        return _escape_signs(line)
    last = begins.end() - 1
    return f"{line[:last]}\\{line[last]}{_escape_signs(line[last + 1 :])}"


def _escape_signs(line: str) -> str:
    return _SIGNS.sub(r"\\\g<0>", printable(line)).replace("|", "&#124;")


def _escape_char(char: str) -> str:
    return char if char.isalnum() or char in " ./-" else f"&#{ord(char)};"
