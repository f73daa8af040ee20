"""Renders a report as one HTML page with charts, without scripts or external resources."""

from __future__ import annotations

import os
from math import isnan
from typing import TYPE_CHECKING

from weightctl.system import __version__
from weightctl.system.files import SEPARATORS
from weightctl.text.page.markup import (
    DASH,
    Markup,
    element,
    join,
    make_searchable,
    mark_code,
    render_document,
    shorten,
)
from weightctl.text.wording import pluralize
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
    from collections.abc import Iterable, Sequence

    from weightctl.verify.report.outline import (
        Block,
        CheckLine,
        Column,
        Fact,
        Outline,
        Row,
        Section,
    )
    from weightctl.verify.results import Problem, Report


_FIRST_PROBLEMS = 40


def render_page(report: Report) -> str:
    """Return a report as an HTML page that includes its style and charts."""
    outline = make_outline(report)
    name = os.path.basename(report.path.rstrip(SEPARATORS)) or report.path
    main = element(
        "main",
        _render_header(outline, name),
        *map(_render_section, outline.sections),
        element("footer", f"Written by weightctl {__version__} verify."),
    )
    return render_document(f"{shorten(name, 80)}: {outline.verdict}", main)


def _render_header(outline: Outline, name: str) -> Markup:
    parts = [element("h1", shorten(name, 160))]
    if outline.description:
        parts.append(element("p", outline.description))
    paths = [("A: ", outline.path), ("B: ", outline.reference)]
    if outline.reference is None:
        paths = [("", outline.path)]
    parts += [
        element("p", side, element("code", path), class_="soft") for side, path in paths if path
    ]
    class_ = "verdict" if outline.is_good else "verdict bad"
    parts.append(element("p", outline.verdict.capitalize(), class_=class_))
    return join([element("header", *parts), _make_card(_list_checks(outline.checks))])


def _render_problems(problems: Sequence[Problem]) -> Markup:
    shown, rest = problems[:_FIRST_PROBLEMS], problems[_FIRST_PROBLEMS:]
    parts = [_render_list(shown)]
    if rest:
        more = element("summary", f"{pluralize(len(rest), 'more problem')}")
        parts.append(element("details", more, _render_list(rest)))
    return _make_card(*parts)


def _render_list(problems: Sequence[Problem]) -> Markup:
    return element("ul", *map(_render_problem, problems), class_="problems")


def _render_problem(problem: Problem) -> Markup:
    where = [element("code", shorten(problem.where, 200)), ": "] if problem.where else []
    parts: list[str] = [*where, mark_code(problem.statement), " "]
    parts.append(element("span", f"({problem.check})", class_="soft"))
    if problem.cause is not None:
        text = mark_code(problem.cause.text)
        cause = [element("b", "Likely cause: "), text, " "]
        cause.append(element("span", f"({problem.cause.name})", class_="soft"))
        parts.append(element("div", *cause, class_="cause"))
    if problem.hint:
        parts.append(
            element("div", element("b", "Hint: "), mark_code(problem.hint), class_="cause")
        )
    return element("li", *parts)


def _render_section(section: Section) -> Markup:
    blocks = [_render_block(block) for block in section.blocks]
    return element("section", element("h2", section.title), *blocks)


def _render_block(block: Block) -> Markup:
    match block:
        case ProblemList():
            return _render_problems(block.problems)
        case Bullets():
            return element("ul", *(element("li", mark_code(each)) for each in block.items))
        case Paragraph():
            return element("p", mark_code(block.text), class_="soft")
        case Facts():
            return element("div", *map(_render_fact, block.facts), class_="tiles")
        case OutlineTable():
            return _render_table(block)
        case Chart():
            return _render_chart(block)


def _render_fact(fact: Fact) -> Markup:
    return element(
        "div",
        element("span", fact.name, class_="soft"),
        element("b", fact.value),
        element("span", fact.meaning, class_="soft"),
        class_="card tile",
    )


def _render_chart(chart: Chart) -> Markup:
    title = element("h3", chart.title)
    if chart.sentence:
        return _make_card(title, element("p", mark_code(chart.sentence)))
    caption = element("figcaption", chart.caption)
    return element("figure", title, chart.draw(), caption, class_="card")


def _render_table(table: OutlineTable) -> Markup:
    drawn = _make_table(table)
    if table.is_folded:
        return _make_card(element("details", element("summary", table.title), drawn))
    return _make_card(*([element("h3", table.title)] if table.title else []), drawn)


def _make_card(*parts: Markup) -> Markup:
    return element("div", *parts, class_="card")


# Names of tensors with more characters are shortened in the middle, and other code if it is longer
# than a third of this.
_LONGEST = 120
_CLASSES = {"name": "wide", "number": "n", "code": "nowrap", "text": None}
_SIGNS = {"wrong": "✗ ", "different": "≠ ", "skipped": f"{DASH} ", "good": "✓ "}


def _list_checks(checks: Sequence[CheckLine]) -> Markup:
    """Return a table of the checks: the name, the verdict, what it examines, and its time."""
    heads = (
        _make_head("Check", "nowrap"), _make_head("Verdict", "nowrap"),
        _make_head("Checked", "wide"), _make_head("Seconds", "n time"),
    )  # fmt: skip
    return _make_frame(heads, map(_make_check_row, checks))


def _make_table(table: OutlineTable) -> Markup:
    """Return a table; a row that has a `share` ends with a bar."""
    heads = [_make_head(column.title, _CLASSES[column.kind]) for column in table.columns]
    has_shares = any(row.share is not None for row in table.rows)
    if has_shares:
        heads.append(_make_head("", "track"))
    rows = [_make_row(table.columns, row) for row in table.rows]
    return _make_frame(heads, rows, table.caption, "slim" if has_shares else None)


def _make_head(title: str, class_: str | None) -> Markup:
    return element("th", title, scope="col", class_=class_)


def _make_frame(
    heads: Iterable[Markup], rows: Iterable[Markup], caption: str = "", class_: str | None = None
) -> Markup:
    drawn = [*rows]
    table = element(
        "table",
        *((element("caption", caption),) if caption else ()),
        element("thead", element("tr", *heads)),
        element("tbody", *drawn),
        class_=class_,
    )
    return make_searchable(table, len(drawn))


def _make_check_row(check: CheckLine) -> Markup:
    state = element("span", _SIGNS[check.state] + check.verdict, class_=f"state {check.state}")
    summary = [element("div", mark_code(check.summary), class_="soft")] if check.summary else []
    return element(
        "tr",
        element("td", element("code", check.name), class_="nowrap"),
        element("td", state, class_="nowrap"),
        element("td", join([check.about, *summary]), class_="wide"),
        element("td", f"{check.seconds:.2f}", class_="n time"),
    )


def _make_row(columns: Sequence[Column], row: Row) -> Markup:
    notes = [element("div", row.note, class_="soft")] if row.note else []
    cells = [
        element("td", _mark_cell(text, column), *(notes if place == 0 else ()),
                class_=_CLASSES[column.kind])
        for place, (text, column) in enumerate(zip(row.cells, columns, strict=True))
    ]  # fmt: skip
    if row.share is not None:
        cells.append(element("td", _draw_bar(row.share), class_="track"))
    return element("tr", *cells, class_="bad" if row.is_problem else None)


def _mark_cell(text: str, column: Column) -> str:
    """Return names and other texts from files as code, and other text unchanged."""
    if column.kind == "name":
        return element("code", shorten(text, _LONGEST))
    if column.kind == "code":
        return element("code", shorten(text, _LONGEST // 3)) if text else ""
    return text


def _draw_bar(share: float) -> Markup:
    width = 100.0 if isnan(share) else 100 * min(max(share, 0.0), 1.0)
    return element("span", Markup(""), class_="bar", style=f"width:{width:.1f}%")
