"""`weightctl stat`: statistics of the values of tensors."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer

from weightctl.cli import options
from weightctl.cli.costs import show_document
from weightctl.cli.progress import long_bar
from weightctl.cli.render import columns, is_terminal, note, show_lines, show_notes, show_table
from weightctl.inspection.contents import Contents, read_contents
from weightctl.inspection.statistics import describe_rows, list_tensors, measure
from weightctl.text.chart import can_draw, draw_counts
from weightctl.text.columns import Cell, count_columns, shape_text
from weightctl.text.wording import join_names, pluralize, printable
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.inspection.statistics import MeasuredRow
    from weightctl.values import Statistics

# At most this number of tensors with values that are not finite are named.
_MOST_NAMED = 8
# A matrix with a magnitude that is larger than so many times the 99.9th percentile is named. In the
# models that were looked at, it is at most 20 times as large.
_FAR = 50

app = typer.Typer(add_completion=False)


@app.command()
def stat(
    *,
    path: options.Path,
    include: options.TensorNames = None,
    exclude: options.TensorNames = None,
    flat: Annotated[bool, typer.Option("--flat")] = False,
    histogram: Annotated[bool, typer.Option("--hist")] = False,
    ranks: Annotated[bool, typer.Option("--rank")] = False,
    page: Annotated[str | None, typer.Option("--html", callback=options.locate_local)] = None,
    force: options.Force = False,
    threads: options.Threads = None,
    anonymous: options.Anonymous = False,
    as_json: options.Json = False,
    source_format: options.From = None,
    quiet: options.Quiet = False,
) -> None:
    """Print statistics of the values of tensors, in one pass over the file.

    The columns are the standard deviation, the mean, the smallest and the largest value, and the
    99.9th percentile of magnitudes. Quantized weights are decoded. Tensors of the same name in
    several layers are one row. Values that are not finite are counted, and left out of the other
    figures. Outliers are values that are more than 6 standard deviations from the mean. The
    effective rank is (sum of s**2)**2 / sum of s**4 of the singular values s.
    """
    del anonymous  # its callback has taken effect
    contents = read_contents(path, include or (), exclude or (), source_format)
    show_notes(header_of(contents.weights).notes, quiet=quiet)
    if page is not None:
        from weightctl.write.targets import check_new_file

        check_new_file(page, "--html", header_of(contents.weights).files, force=force)
    tensors, skipped = list_tensors(contents)
    total = sum(each.info.nbytes for each in tensors) * (2 if ranks else 1)
    with long_bar(total, "measuring", quiet=quiet) as advance:
        measured = [
            *measure(
                contents,
                tensors,
                advance,
                threads,
                folds=not (flat or as_json),
                ranks=ranks,
                members=page is not None,
            )
        ]
    if page is not None:
        _write_page(page, path, contents, measured, skipped, force=force)
    if as_json:
        show_document(describe_rows(path, contents, measured, skipped))
        return
    if measured:
        heading = _heading(histogram=histogram, ranks=ranks)
        rows = [heading, *(_row(each, histogram=histogram, ranks=ranks) for each in measured)]
        show_table(rows)
        if not quiet and is_terminal() and (needed := count_columns(rows)) > columns():
            left_out = ", ".join(cell.text for cell in heading if cell.text and cell.short == "")
            note(f"not shown: {left_out}, which need a terminal of {needed} columns")
    _show_totals(measured, skipped, quiet=quiet)


def _write_page(
    page: str,
    path: str,
    contents: Contents,
    measured: Sequence[MeasuredRow],
    skipped: Sequence[str],
    *,
    force: bool,
) -> None:
    from weightctl.cli.report import write_content
    from weightctl.inspection.statistics_page import render_page

    rows = [member for each in measured for member in each.members]
    order = {name: place for place, name in enumerate(contents.entries)}
    rows.sort(key=lambda row: order[row.name])
    text = render_page(path, header_of(contents.weights).format, rows, skipped)
    write_content(page, text.encode(), force=force)


def _heading(*, histogram: bool, ranks: bool) -> list[Cell]:
    titles = [
        Cell("tensor"),
        Cell("shape", right=True, short=""),
        Cell("type", short=""),
        *_choose_columns(
            [Cell(title, right=True) for title in ("std", "mean", "min", "max", "99.9 % <")],
            Cell("outliers", right=True),
            histogram=histogram,
        ),
        *([Cell("rank", right=True)] if ranks else []),
        *([Cell("distribution")] if histogram else []),
        Cell(""),
    ]
    return [cell._replace(style="bold") for cell in titles]


def _row(measured: MeasuredRow, *, histogram: bool, ranks: bool) -> list[Cell]:
    found, first = measured.found, measured.infos[0]
    figures = (found.std, found.mean, found.least, found.most, found.percentiles[-1])
    times = f"{len(measured.infos)} x " if len(measured.infos) > 1 else ""
    return [
        Cell(measured.name),
        Cell(times + shape_text(first.shape), "dim", right=True, short=""),
        Cell(measured.encoding, "cyan", short=""),
        *_choose_columns(
            [Cell(_figure(figure), right=True) for figure in figures],
            Cell(_share(found.outliers) if found.outliers else "", "yellow", right=True),
            histogram=histogram,
        ),
        *(
            [Cell(_figure(measured.rank) if measured.rank >= 0 else "", right=True)]
            if ranks
            else []
        ),
        *([Cell(draw_counts(measured.bins, plain=not can_draw()), "cyan")] if histogram else []),
        _count_special(found),
    ]


def _choose_columns(figures: Sequence[Cell], outliers: Cell, *, histogram: bool) -> list[Cell]:
    """Return cells of which a narrow terminal shows the most important ones."""
    std, mean, least, most, percentile = figures
    if histogram:
        percentile, outliers = percentile._replace(short=""), outliers._replace(short="")
    return [std, mean._replace(short=""), least, most, percentile, outliers]


def _figure(value: float) -> str:
    return f"{value + 0.0:.3g}" if isfinite(value) else "-"


def _count_special(found: Statistics) -> Cell:
    """Return how many values are NaN, infinite or zero; a narrow terminal shows no zeros."""
    bad = {"NaN": found.nans, "infinite": found.infinities}
    texts = [f"{count:,} {what}" for what, count in bad.items() if count]
    zeros = [f"{_share(found.zeros / found.size)} zeros"] if found.zeros else []
    style = "red" if texts else "yellow"
    return Cell(", ".join([*texts, *zeros]), style, short=", ".join(texts))


def _share(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1 else "100 %"


def _show_totals(measured: Sequence[MeasuredRow], skipped: Sequence[str], *, quiet: bool) -> None:
    if quiet:
        return
    tensors = sum(len(each.infos) for each in measured)
    values = sum(each.found.size for each in measured)
    show_lines([[], [Cell(f"{pluralize(tensors, 'tensor')}, {pluralize(values, 'value')}")]])
    if nonfinite := [name for each in measured for name in each.nonfinite]:
        names = join_names([f"`{printable(name)}`" for name in nonfinite], _MOST_NAMED)
        note(f"values that are NaN or infinite are in {names}")
    for each in measured:
        found = each.found
        largest, usual = max(-found.least, found.most), found.percentiles[-1]
        if len(each.infos[0].shape) > 1 and largest > _FAR * usual > 0:
            note(
                f"the largest magnitude in `{printable(each.largest)}`, {largest:.3g}, is "
                f"{largest / usual:,.0f} times that of 99.9 % of the values"
            )
    if skipped:
        verb = "has" if len(skipped) == 1 else "have"
        note(f"{pluralize(len(skipped), 'tensor')} {verb} no floating-point values: not measured")
