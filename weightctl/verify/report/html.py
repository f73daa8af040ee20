"""A report as one HTML page with pictures, without scripts or external resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl import __version__
from weightctl.text.wording import pluralize
from weightctl.verify.report.markup import Markup, element, join, mark_code
from weightctl.verify.report.outline import (
    Bullets,
    Chart,
    Facts,
    OutlineTable,
    Paragraph,
    ProblemList,
)
from weightctl.verify.report.phrases import shorten
from weightctl.verify.report.sections import make_outline
from weightctl.verify.report.style import STYLE
from weightctl.verify.report.tables import list_checks, make_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.verify.report.outline import Block, Fact, Outline, Section
    from weightctl.verify.results import Problem, Report

__all__ = ["render_page"]

# With this policy, a browser loads and runs nothing, whatever the page contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_FIRST_PROBLEMS = 40


def render_page(report: Report) -> str:
    """Return a report as an HTML page, with its style and pictures inside."""
    outline = make_outline(report)
    name = report.path.rstrip("/").rpartition("/")[2] or report.path
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{shorten(name, 80)}: {outline.verdict}"),
        element("style", Markup(STYLE)),
    )
    main = element(
        "main",
        _render_header(outline, name),
        *map(_render_section, outline.sections),
        element("footer", f"Written by weightctl {__version__} verify."),
    )
    body = element("body", main)
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _render_header(outline: Outline, name: str) -> Markup:
    parts = [element("h1", shorten(name, 160))]
    if outline.description:
        parts.append(element("p", outline.description))
    against = [", against ", element("code", outline.reference)] if outline.reference else []
    parts.append(element("p", element("code", outline.path), *against, class_="soft"))
    class_ = "verdict" if outline.is_good else "verdict bad"
    parts.append(element("p", outline.verdict.capitalize(), class_=class_))
    return join([element("header", *parts), _make_card(list_checks(outline.checks))])


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
    drawn = make_table(table)
    if table.is_folded:
        return _make_card(element("details", element("summary", table.title), drawn))
    return _make_card(*([element("h3", table.title)] if table.title else []), drawn)


def _make_card(*parts: Markup) -> Markup:
    return element("div", *parts, class_="card")
