"""Tables of a report's page."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, NamedTuple

from weightctl.text.wording import number, percent
from weightctl.verify import CHECKS
from weightctl.verify.ranking import excess_of, ratio_to_usual
from weightctl.verify.report.markup import Markup, element, join, mark_code
from weightctl.verify.report.phrases import (
    DASH,
    shorten,
    show_encodings,
    show_shape,
    show_spaces,
    show_times,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weightctl.verify.figures import MatrixGain, NextToken, TensorError
    from weightctl.verify.results import Report

__all__ = ["list_checks", "list_gains", "list_next_tokens", "list_tensors"]

# A longer name of a tensor has dots in its middle, and so has a token a third as long.
_LONGEST = 120


class _Column(NamedTuple):
    title: str
    class_: str | None = None


def _make_table(
    columns: Sequence[_Column],
    rows: Iterable[Markup],
    caption: str = "",
    class_: str | None = None,
) -> Markup:
    head = element(
        "tr", *(element("th", title, scope="col", class_=kind) for title, kind in columns)
    )
    table = element(
        "table",
        *((element("caption", caption),) if caption else ()),
        element("thead", head),
        element("tbody", *rows),
        class_=class_,
    )
    return element("div", table, class_="scroll", tabindex="0")


def _make_row(
    columns: Sequence[_Column], cells: Sequence[str], class_: str | None = None
) -> Markup:
    written = [
        element("td", cell, class_=column.class_)
        for column, cell in zip(columns, cells, strict=True)
    ]
    return element("tr", *written, class_=class_)


def list_checks(report: Report) -> Markup:
    """Return what each check looked at, and what came of it."""
    columns = (
        _Column("Check", "nowrap"), _Column("Verdict", "nowrap"), _Column("Looked at", "wide"),
        _Column("Seconds", "n time"),
    )  # fmt: skip
    rows: list[Markup] = []
    for name, result in report.results.items():
        said = result.verdict
        is_whole = said == "fine"
        state = "wrong" if result.problems else "good" if is_whole else "skipped"
        sign = {"wrong": "✗ ", "skipped": f"{DASH} ", "good": "✓ "}[state]
        about = CHECKS[name].about if name in CHECKS else ""
        told = result.summary
        cells = (
            element("code", name),
            element("span", sign + said, class_=f"state {state}"),
            join([about, *([element("div", mark_code(told), class_="soft")] if told else [])]),
            f"{report.seconds[name]:.2f}",
        )
        rows.append(_make_row(columns, cells))
    return _make_table(columns, rows)


def list_tensors(errors: Sequence[TensorError], caption: str = "") -> Markup:
    """Return how far tensors are off."""
    columns = (
        _Column("Tensor", "wide"), _Column("Encoding"), _Column("Relative RMSE", "n"),
        _Column("Usual", "n"), _Column("Times usual", "n"), _Column("Worst run", "n"),
        _Column("Max error", "n"), _Column("Cosine", "n"),
    )  # fmt: skip
    rows = [
        _make_row(
            columns,
            (
                join(
                    [
                        element("code", shorten(error.name, _LONGEST)),
                        element("div", show_shape(error.shape), class_="soft"),
                    ]
                ),
                show_encodings(error),
                percent(error.relative_rmse),
                percent(error.expected),
                show_times(excess_of(error)),
                show_times(error.worst),
                number(error.max_error),
                number(error.cosine, 5),
            ),
            "bad" if error.is_problem else None,
        )
        for error in errors
    ]
    return _make_table(columns, rows, caption)


def list_next_tokens(tokens: Sequence[NextToken]) -> Markup:
    """Return which tokens may come next, and how likely that is."""
    columns = (
        _Column("Token", "n"), _Column("Text", "nowrap"), _Column("Probability", "n"),
        _Column("", "track"),
    )  # fmt: skip
    most = max((token.probability for token in tokens if token.probability <= 1), default=0) or 1
    rows = [
        _make_row(
            columns,
            (
                str(token.token),
                element("code", shorten(show_spaces(token.text), _LONGEST // 3))
                if token.text
                else "",
                percent(token.probability),
                _draw_bar(token.probability / most),
            ),
        )
        for token in tokens
    ]
    return _make_table(columns, rows, class_="slim")


def list_gains(matrices: Sequence[MatrixGain]) -> Markup:
    """Return how long the vectors are that matrices make of unit vectors."""
    columns = (
        _Column("Matrix", "wide"), _Column("Shape"), _Column("Length", "n"), _Column("Usual", "n"),
        _Column("Times usual", "n"),
    )  # fmt: skip
    rows = [
        _make_row(
            columns,
            (
                element("code", shorten(matrix.name, _LONGEST)),
                show_shape(matrix.shape),
                number(matrix.gain),
                number(matrix.usual),
                show_times(ratio_to_usual(matrix.gain, matrix.usual)),
            ),
        )
        for matrix in matrices
    ]
    return _make_table(columns, rows)


def _draw_bar(share: float) -> Markup:
    width = 100.0 if isnan(share) else 100 * min(max(share, 0.0), 1.0)
    return element("span", Markup(""), class_="bar", style=f"width:{width:.1f}%")
