"""A report as one page with pictures, which needs no network and runs no script."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from weightctl import __version__
from weightctl.text.wording import pluralize
from weightctl.verify.figures import ForwardFigures, ValuesFigures
from weightctl.verify.ranking import choose_title, sort_strangest_first, sort_worst_first
from weightctl.verify.report import tables
from weightctl.verify.report.advice import list_remedies
from weightctl.verify.report.charts import draw_activations, draw_divergences, draw_histogram
from weightctl.verify.report.heat_map import draw_errors, draw_excesses, make_grid
from weightctl.verify.report.markup import Markup, element, join, mark_code
from weightctl.verify.report.phrases import list_facts, say_all_usual, say_verdict, shorten
from weightctl.verify.report.style import STYLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weightctl.verify.figures import LayerDivergence, MatrixGain
    from weightctl.verify.results import Problem, Report

__all__ = ["render_page"]

# A browser that obeys it loads nothing from anywhere and runs nothing, whatever the page says.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_WORST, _MOST_TENSORS, _FIRST_PROBLEMS, _GAINS = 12, 1000, 40, 20


def render_page(report: Report) -> str:
    """Return a report as a page of HTML, with its style and pictures inside."""
    name = report.path.rstrip("/").rpartition("/")[2] or report.path
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{shorten(name, 80)}: {say_verdict(report)}"),
        element("style", Markup(STYLE)),
    )
    main = element(
        "main",
        _render_header(report, name),
        _render_problems(report.problems),
        *_render_advice(list_remedies(report)),
        *_render_forward(report.figures(ForwardFigures)),
        *_render_values(report.figures(ValuesFigures)),
        *_render_notes(report.notes),
        element("footer", f"Written by weightctl {__version__} verify."),
    )
    body = element("body", main)
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _render_header(report: Report, name: str) -> Markup:
    parts = [element("h1", shorten(name, 160))]
    if report.description:
        parts.append(element("p", report.description))
    against = [", against ", element("code", report.reference)] if report.reference else []
    parts.append(element("p", element("code", report.path), *against, class_="soft"))
    class_ = "verdict bad" if report.problems else "verdict"
    parts.append(element("p", say_verdict(report).capitalize(), class_=class_))
    return join([element("header", *parts), _make_card(tables.list_checks(report))])


def _render_problems(problems: Sequence[Problem]) -> Markup:
    if not problems:
        return Markup("")
    shown, rest = problems[:_FIRST_PROBLEMS], problems[_FIRST_PROBLEMS:]
    parts = [_render_list(shown)]
    if rest:
        more = element("summary", f"{pluralize(len(rest), 'more problem')}")
        parts.append(element("details", more, _render_list(rest)))
    return _make_section("What is wrong", _make_card(*parts))


def _render_advice(advice: Sequence[str]) -> list[Markup]:
    if not advice:
        return []
    items = [element("li", mark_code(each)) for each in advice]
    return [_make_section("What to do next", element("ul", *items))]


def _render_list(problems: Sequence[Problem]) -> Markup:
    return element("ul", *map(_render_problem, problems), class_="problems")


def _render_problem(problem: Problem) -> Markup:
    where = [element("code", shorten(problem.where, 200)), ": "] if problem.where else []
    parts: list[str] = [*where, mark_code(problem.statement), " "]
    parts.append(element("span", f"({problem.check})", class_="soft"))
    if problem.cause is not None:
        told = mark_code(problem.cause.text)
        cause = [element("b", "Likely cause: "), told, " "]
        cause.append(element("span", f"({problem.cause.name})", class_="soft"))
        parts.append(element("div", *cause, class_="cause"))
    if problem.hint:
        parts.append(
            element("div", element("b", "Hint: "), mark_code(problem.hint), class_="cause")
        )
    return element("li", *parts)


def _render_forward(figures: ForwardFigures | None) -> list[Markup]:
    if figures is None:
        return []
    sections: list[Markup] = []
    tiles = [
        element(
            "div",
            element("span", what, class_="soft"),
            element("b", value),
            element("span", meaning, class_="soft"),
            class_="card tile",
        )
        for what, value, meaning in list_facts(figures)
    ]
    divergence = figures.divergence
    said: list[Markup] = [element("div", *tiles, class_="tiles")] if tiles else []
    if divergence is not None and divergence.histogram:
        said.append(
            _make_figure(
                "How far the predictions are from the reference's",
                draw_histogram(divergence),
                "Positions by the Kullback-Leibler divergence of the model's next-token "
                "distribution from the reference's.",
            )
        )
    if figures.next_tokens:
        title = element("h3", "What the model would say next")
        said.append(_make_card(title, tables.list_next_tokens(figures.next_tokens)))
    if said:
        sections.append(_make_section("What the model says", *said))
    charts: list[Markup] = []
    if divergence is not None and divergence.layers:
        charts.append(_render_parts(divergence.layers))
    if _has_size(each.rms for each in figures.activations):
        charts.append(
            _make_figure(
                "Activations",
                draw_activations(figures.activations),
                "The size of the numbers that each part gives; the output's are logits. A few very "
                "great ones are usual in language models. The scale is logarithmic.",
            )
        )
    elif figures.activations:
        charts.append(element("p", "No part gives numbers that are finite and not 0."))
    if charts:
        sections.append(_make_section("Layer by layer", *charts))
    if figures.matrices:
        sections.append(_render_matrices(figures.matrices))
    return sections


def _render_parts(layers: Sequence[LayerDivergence]) -> Markup:
    """Return a picture of what diverges, or a sentence where there is nothing to be seen."""
    title = "Divergence from the reference, part by part"
    if all(isfinite(each.divergence) and not each.is_problem for each in layers):
        return _make_card(element("h3", title), element("p", mark_code(say_all_usual(layers))))
    return _make_figure(
        title,
        draw_divergences(layers),
        "Both models are given what the reference's part before gave, so that each fault shows "
        "where it is. The scale is logarithmic; what stands at its foot is equal.",
    )


def _has_size(values: Iterable[float]) -> bool:
    """Whether there is something to draw an axis for."""
    return any(isfinite(value) and value > 0 for value in values)


def _render_matrices(matrices: Sequence[MatrixGain]) -> Markup:
    shown = sort_strangest_first(matrices)[:_GAINS]
    told = (
        "The family is unknown, so each matrix was given a random unit vector. How long what it "
        "makes of that is, next to what a matrix of independent numbers of the same size makes; "
        f"the {len(shown)} farthest from that, of {len(matrices):,}."
    )
    return _make_section(
        "Matrices", element("p", told, class_="soft"), _make_card(tables.list_gains(shown))
    )


def _render_values(figures: ValuesFigures | None) -> list[Markup]:
    if figures is None or not figures.tensors:
        return []
    cells = make_grid(figures.tensors)
    left_out = f" {cells.left_out:,} tensors have no room here." if cells.left_out else ""
    ranked = sort_worst_first(figures.tensors)
    parts = [
        _make_figure(
            "Times the usual error",
            draw_excesses(cells),
            "Each tensor's relative RMSE as a multiple of what its encoding costs on these very "
            f"numbers. Of several experts the worst is shown.{left_out}",
        ),
        _make_card(
            element("h3", choose_title(ranked).capitalize()), tables.list_tensors(ranked[:_WORST])
        ),
    ]
    if _has_size(error.relative_rmse for error in ranked):
        told = "The root of the squared differences' sum over that of the reference's squares."
        parts.insert(1, _make_figure("Relative RMSE", draw_errors(cells), told))
    if len(ranked) > _WORST:
        shown = ranked[:_MOST_TENSORS]
        rest = len(ranked) - len(shown)
        caption = f"{rest:,} more are in the report as JSON." if rest else ""
        count = f"the first {len(shown):,}" if rest else f"{len(shown):,}"
        summary = element("summary", f"All tensors ({count})")
        parts.append(_make_card(element("details", summary, tables.list_tensors(shown, caption))))
    return [_make_section("Values against the reference", *parts)]


def _render_notes(notes: Sequence[str]) -> list[Markup]:
    if not notes:
        return []
    items = [element("li", mark_code(note)) for note in notes]
    return [_make_section("Notes", element("ul", *items))]


def _make_section(title: str, *parts: Markup) -> Markup:
    return element("section", element("h2", title), *parts)


def _make_card(*parts: Markup) -> Markup:
    return element("div", *parts, class_="card")


def _make_figure(title: str, drawn: Markup, caption: str) -> Markup:
    return element(
        "figure", element("h3", title), drawn, element("figcaption", caption), class_="card"
    )
