"""Renders statistics of tensors as an HTML page with heat maps and a table that can be sorted."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from math import isfinite, isnan, nan
from statistics import median
from typing import TYPE_CHECKING

from weightctl.system import __version__
from weightctl.system.files import SEPARATORS
from weightctl.text.page.grid import GridCell, draw_grid, find_place, keep_worst
from weightctl.text.page.markup import (
    TIMES,
    Markup,
    element,
    join,
    make_axis,
    make_searchable,
    render_document,
    shorten,
    show_tick,
    show_times,
)
from weightctl.text.wording import number, percent, pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.inspection.statistics import MeasuredRow

_Place = tuple[str, int | None]

# Names with more characters are shortened in the middle.
_LONGEST = 120
# The upper bounds of the colors of ratios to the median; larger ratios have the last color.
_BOUNDS = (0.5, 0.8, 1.25, 2.0, 3.0, 6.0)
_LEVELS = 9
_WIDE, _HIGH = 96, 20


@dataclass(frozen=True)
class _Figure:
    """A column of the table: its title, the value of a row, and how a value is written."""

    title: str
    value: Callable[[MeasuredRow], float]
    write: Callable[[float], str]


def render_page(path: str, kind: str, rows: Sequence[MeasuredRow], skipped: Sequence[str]) -> str:
    """Return a page about the tensors of a checkpoint; each row has one tensor.

    `kind` is the format of the checkpoint, and `skipped` has the names of tensors that were not
    measured. The page has columns and a heat map of ranks if there are any.
    """
    name = os.path.basename(path.rstrip(SEPARATORS)) or path
    has_ranks = any(not isnan(row.rank) for row in rows)
    main = element(
        "main",
        element(
            "header",
            element("h1", shorten(name, 160)),
            element("p", element("code", path), f" {kind}", class_="soft"),
        ),
        _draw_tiles(rows, skipped),
        *(_draw_maps(rows, has_ranks=has_ranks) if rows else []),
        _draw_table(rows, has_ranks=has_ranks),
        element("footer", f"Written by weightctl {__version__} stat."),
    )
    return render_document(f"{shorten(name, 80)}: statistics", main)


def _draw_tiles(rows: Sequence[MeasuredRow], skipped: Sequence[str]) -> Markup:
    total = sum(row.found.size for row in rows)
    zeros = sum(row.found.zeros for row in rows)
    bad = sum(row.found.nans + row.found.infinities for row in rows)
    unmeasured = f"{len(skipped):,} not measured: no floating-point values" if skipped else ""
    facts = [
        ("tensors", f"{len(rows):,}", unmeasured),
        ("values", f"{total:,}", ""),
        ("zeros", percent(zeros / total) if total else "0 %", f"{zeros:,} values"),
        ("NaN and infinite", f"{bad:,}", f"in {pluralize(sum(map(_is_bad, rows)), 'tensor')}"),
    ]
    tiles = [
        element(
            "div",
            element("span", title, class_="soft"),
            element("b", value),
            element("span", meaning, class_="soft"),
            class_="card tile",
        )
        for title, value, meaning in facts
    ]
    return element("section", element("div", *tiles, class_="tiles"))


def _is_bad(row: MeasuredRow) -> bool:
    return bool(row.found.nans or row.found.infinities)


def _draw_maps(rows: Sequence[MeasuredRow], *, has_ranks: bool) -> list[Markup]:
    drawn = [
        _draw_ratios(
            rows,
            "Standard deviation by layer and kind, as a multiple of the kind's median",
            lambda row: row.found.std,
        ),
        _draw_levels(
            rows,
            "Largest magnitude by layer and kind, in standard deviations",
            _peak,
            lambda value: f"{show_tick(value)} std",
        ),
    ]
    if has_ranks:
        drawn.append(
            _draw_ratios(
                [row for row in rows if not isnan(row.rank)],
                "Effective rank by layer and kind, as a multiple of the kind's median",
                lambda row: row.rank,
            )
        )
    return [element("section", element("h2", "By layer"), *drawn)]


def _peak(row: MeasuredRow) -> float:
    found = row.found
    return max(-found.least, found.most) / found.std if found.std else nan


def _draw_ratios(
    rows: Sequence[MeasuredRow], title: str, value: Callable[[MeasuredRow], float]
) -> Markup:
    kinds: dict[str, list[float]] = {}
    for row in rows:
        if isfinite(value(row)):
            kinds.setdefault(find_place(row.name)[0], []).append(value(row))
    usual = {kind: median(values) for kind, values in kinds.items()}

    def ratio(row: MeasuredRow) -> float:
        of_kind = usual.get(find_place(row.name)[0], nan)
        return value(row) / of_kind if of_kind else nan

    def color(row: MeasuredRow) -> str:
        found = ratio(row)
        return "same" if isnan(found) else f"r{sum(found > bound for bound in _BOUNDS)}"

    def distance(row: MeasuredRow) -> float:
        found = ratio(row)
        return max(found, 1 / found) if found > 0 else 1.0

    words = ["below ½", "½", "median", *(f"{bound} {TIMES}" for bound in ("1¼", "2", "3", "6"))]
    legend = [(f"r{level}", text) for level, text in enumerate(words)]
    return _draw_map(
        title,
        rows,
        color,
        distance,
        lambda row: f"{show_times(ratio(row))} the median",
        legend=legend,
    )


def _draw_levels(
    rows: Sequence[MeasuredRow],
    title: str,
    value: Callable[[MeasuredRow], float],
    write: Callable[[float], str],
) -> Markup:
    scale = make_axis(map(value, rows), 0, _LEVELS - 1, decades=0.65)

    def color(row: MeasuredRow) -> str:
        found = value(row)
        return f"h{round(scale.at(found))}" if isfinite(found) and found > 0 else "same"

    steps = range(0, _LEVELS, 2)
    span = (scale.high - scale.low) / (_LEVELS - 1)
    legend = [(f"h{level}", write(10 ** (scale.low + span * level))) for level in steps]
    return _draw_map(title, rows, color, value, lambda row: write(value(row)), legend=legend)


def _draw_map(
    title: str,
    rows: Sequence[MeasuredRow],
    color: Callable[[MeasuredRow], str],
    rank: Callable[[MeasuredRow], float],
    write: Callable[[MeasuredRow], str],
    *,
    legend: list[tuple[str, str]],
) -> Markup:
    """Draw a heat map; a cell of several tensors, such as experts, has the highest `rank`."""
    cells: dict[_Place, list[MeasuredRow]] = {}
    prefix = _find_prefix(rows)
    for row in rows:
        kind, layer = find_place(row.name)
        cells.setdefault((kind.removeprefix(prefix), layer), []).append(row)

    def order(row: MeasuredRow) -> tuple[bool, float]:
        found = rank(row)
        return _is_bad(row), found if isfinite(found) else -1.0

    worst = {place: max(group, key=order) for place, group in cells.items()}
    shown = {
        place: GridCell(
            color(row), _describe(row, len(cells[place]), write(row)), is_problem=_is_bad(row)
        )
        for place, row in keep_worst(worst, order).items()
    }
    drawn = draw_grid(title, shown, legend)
    caption = f"{len(rows) - sum(len(cells[place]) for place in shown):,} tensors are not shown."
    captions = [element("figcaption", caption)] if len(shown) < len(cells) else []
    return element("figure", element("h3", title), drawn, *captions, class_="card")


def _find_prefix(rows: Sequence[MeasuredRow]) -> str:
    """Return what most kinds begin with, such as `model.layers.*.`, which the labels leave out."""
    kinds = {find_place(row.name)[0] for row in rows}
    heads = Counter("".join(kind.partition("*.")[:2]) for kind in kinds if "*." in kind)
    return heads.most_common(1)[0][0] if heads else ""


def _describe(row: MeasuredRow, count: int, text: str) -> Markup:
    which = f" (one of {pluralize(count, 'tensor')})" if count > 1 else ""
    lines = [f"{shorten(row.name, _LONGEST)}{which}", f"{row.encoding}: {text}"]
    return join([lines[0], Markup("&#10;"), lines[1]])


def _draw_table(rows: Sequence[MeasuredRow], *, has_ranks: bool) -> Markup:
    figures: list[_Figure] = [
        _Figure("std", lambda row: row.found.std, _write),
        _Figure("mean", lambda row: row.found.mean, _write),
        _Figure("min", lambda row: row.found.least, _write),
        _Figure("max", lambda row: row.found.most, _write),
        _Figure("99.9 % <", lambda row: row.found.percentiles[-1], _write),
        _Figure("outliers", lambda row: row.found.outliers, _write_share),
        _Figure("zeros", lambda row: row.found.zeros / row.found.size, _write_share),
        _Figure("NaN, inf", lambda row: row.found.nans + row.found.infinities, _write_count),
    ]
    if has_ranks:
        figures.append(_Figure("rank", lambda row: row.rank, _write))
    head = element(
        "tr",
        _heading("tensor"),
        _heading("shape", class_="n"),
        _heading("type"),
        element("th", "distribution"),
        *(_heading(figure.title, class_="n") for figure in figures),
    )
    body = [_draw_row(row, figures) for row in rows]
    table = element("table", element("thead", head), element("tbody", *body))
    return element(
        "section",
        element("h2", "All tensors"),
        element("p", "Click a heading to sort the rows.", class_="soft"),
        element("div", make_searchable(table, len(rows)), class_="card"),
    )


def _heading(title: str, class_: str | None = None) -> Markup:
    return element("th", element("button", title, type="button"), class_=class_)


def _draw_row(row: MeasuredRow, figures: Sequence[_Figure]) -> Markup:
    shape = row.infos[0].shape
    cells = [
        element(
            "td", element("code", shorten(row.name, _LONGEST)), class_="nowrap", data_v=row.name
        ),
        element("td", TIMES.join(map(str, shape)), class_="n", data_v=str(row.found.size)),
        element("td", row.encoding, class_="nowrap"),
        element("td", _draw_bins(row.bins)),
    ]
    for figure in figures:
        value = figure.value(row)
        key = f"{value:.9g}" if isfinite(value) else "-1e300"
        cells.append(element("td", figure.write(value), class_="n", data_v=key))
    return element("tr", *cells, class_="bad" if _is_bad(row) else None)


def _write(value: float) -> str:
    return number(value, 3) if isfinite(value) else ""


def _write_share(value: float) -> str:
    return percent(value) if value > 0 else ""


def _write_count(value: float) -> str:
    return f"{value:,.0f}" if value else ""


def _draw_bins(bins: Sequence[int]) -> Markup:
    """Return a sparkline of a histogram, with a line at 0."""
    most = max(bins, default=0) or 1
    step = _WIDE / len(bins)
    tops = [_HIGH * (1 - count / most) for count in bins]
    steps = "".join(f"V{top:.1f}H{step * (place + 1):.0f}" for place, top in enumerate(tops))
    return element(
        "svg",
        element("path", d=f"M0 {_HIGH}{steps}V{_HIGH}z", class_="first"),
        element("line", x1=_WIDE / 2, x2=_WIDE / 2, y1=0, y2=_HIGH, class_="grid"),
        viewBox=f"0 0 {_WIDE} {_HIGH}",
        class_="spark",
        role="img",
        aria_label="distribution of the values",
    )
