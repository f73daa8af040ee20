"""Tables of a report's page."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

from weightctl.verify.report.markup import Markup, element, join, mark_code
from weightctl.verify.report.phrases import DASH, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weightctl.verify.report.outline import CheckLine, Column, OutlineTable, Row

__all__ = ["list_checks", "make_table"]

# Longer names of tensors are shortened in the middle, and texts longer than a third of this too.
_LONGEST = 120
_CLASSES = {"name": "wide", "number": "n", "code": "nowrap", "text": None}
_SIGNS = {"wrong": "✗ ", "different": "≠ ", "skipped": f"{DASH} ", "good": "✓ "}


def list_checks(checks: Sequence[CheckLine]) -> Markup:
    """Return a table of the checks with what each examines and its result."""
    heads = (
        _make_head("Check", "nowrap"), _make_head("Verdict", "nowrap"),
        _make_head("Checked", "wide"), _make_head("Seconds", "n time"),
    )  # fmt: skip
    return _make_frame(heads, map(_make_check_row, checks))


def make_table(table: OutlineTable) -> Markup:
    """Return a table; rows with a share have a bar at the end."""
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
    table = element(
        "table",
        *((element("caption", caption),) if caption else ()),
        element("thead", element("tr", *heads)),
        element("tbody", *rows),
        class_=class_,
    )
    return element("div", table, class_="scroll", tabindex="0")


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
    """Return names and other texts from files as code, and any other text as it is."""
    if column.kind == "name":
        return element("code", shorten(text, _LONGEST))
    if column.kind == "code":
        return element("code", shorten(text, _LONGEST // 3)) if text else ""
    return text


def _draw_bar(share: float) -> Markup:
    width = 100.0 if isnan(share) else 100 * min(max(share, 0.0), 1.0)
    return element("span", Markup(""), class_="bar", style=f"width:{width:.1f}%")
