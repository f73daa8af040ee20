"""`weightctl stat`: statistics of the values of tensors."""

from __future__ import annotations

import json
import re
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from weightctl.cli.chart import can_draw, draw_counts
from weightctl.cli.contents import Contents, kind
from weightctl.cli.costs import document_network
from weightctl.cli.listing import LONG
from weightctl.cli.options import (
    Anonymous,
    Exclude,
    From,
    Include,
    Json,
    Path,
    Quiet,
    Threads,
    examples,
    exit_codes,
)
from weightctl.cli.outline import join_ranges
from weightctl.cli.progress import progress_bar
from weightctl.cli.render import Cell, note, shape_text, show_lines, show_table, show_text
from weightctl.formats.open.opening import open_weights
from weightctl.text.wording import pluralize
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from weightctl.values import Statistics
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

__all__ = ["app"]

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")
_BINS = 24

app = typer.Typer(add_completion=False)


class _MeasuredRow(NamedTuple):
    """Tensors that are shown in one row, their encoding, and the statistics of all their values."""

    infos: list[TensorInfo]
    encoding: str
    found: Statistics
    bins: list[int]
    limit: float


@app.command(
    epilog="\n\n".join(
        [
            exit_codes("the statistics were printed"),
            examples(
                [
                    "weightctl stat model/",
                    "weightctl stat model.gguf --include '*ffn_down*' --flat",
                    "weightctl stat model/ --hist --include '*norm*'",
                    "weightctl stat model/ --json",
                ]
            ),
        ]
    )
)
def stat(
    *,
    path: Path,
    include: Include = None,
    exclude: Exclude = None,
    flat: Annotated[
        bool,
        typer.Option("--flat", help="List each tensor on its own line, without grouping layers."),
    ] = False,
    histogram: Annotated[
        bool,
        typer.Option(
            "--hist",
            help="Draw the distribution of the values, from -4 to 4 standard deviations or to the "
            "largest magnitude.",
        ),
    ] = False,
    threads: Threads = None,
    anonymous: Anonymous = False,
    as_json: Json = False,
    source: From = None,
    quiet: Quiet = False,
) -> None:
    """Print statistics of the values of tensors, in one pass over the file.

    The columns are the standard deviation, the mean, the smallest and the largest value, and the
    99.9th percentile of magnitudes. Quantized weights are decoded. Tensors of the same name in
    several layers are one row. Values that are not finite are counted, and left out of the other
    figures. Outliers are values that are more than 6 standard deviations from the mean.
    """
    del anonymous  # its callback has taken effect
    contents = Contents(open_weights(path, source), include or (), exclude or ())
    if not quiet:
        for text in header_of(contents.weights).notes:
            note(text)
    tensors, skipped = _list_tensors(contents)
    total = sum(each.info.nbytes for each in tensors)
    with progress_bar(total, quiet=quiet or total < LONG) as advance:
        measured = [*_measure(contents, tensors, advance, threads, folds=not (flat or as_json))]
    if as_json:
        document = {
            "path": path,
            "format": header_of(contents.weights).format,
            "tensors": [_document(each) for each in measured],
            "skipped": skipped,
        }
        show_text(json.dumps(document | document_network()) + "\n")
        return
    if measured:
        show_table(
            [_heading(histogram=histogram), *(_row(each, histogram=histogram) for each in measured)]
        )
    _show_totals(measured, skipped, quiet=quiet)


def _list_tensors(contents: Contents) -> tuple[list[ReadableTensor], list[str]]:
    """Return the listed weights with real values, and the names of the other listed tensors."""
    from weightctl.schemes.dequantize import dequantize_weights
    from weightctl.values import can_measure
    from weightctl.weights.derived import tensor_of
    from weightctl.weights.tree import source_of

    weights = dequantize_weights(contents.weights, in_blocks=False, keeps_shapes=True)
    source = source_of(weights)
    found = [each for name, each in header_of(weights).tensors.items() if name in contents.entries]
    wanted = [each for each in found if can_measure(each.encoding) and each.size]
    names = {each.name for each in wanted}
    skipped = [each.name for each in found if each.name not in names]
    return [tensor_of(source, each.name) for each in wanted], skipped


def _measure(
    contents: Contents,
    tensors: Sequence[ReadableTensor],
    advance: Callable[[int], object] | None,
    threads: int | None,
    *,
    folds: bool,
) -> Iterator[_MeasuredRow]:
    from weightctl.values import measure_counts

    groups: dict[object, list[ReadableTensor]] = {}
    for tensor in tensors:
        info = tensor.info
        name = _NUMBER.sub("#", info.name) if folds else info.name
        label = kind(contents.entries[info.name])[0]
        groups.setdefault((name, info.shape, label), []).append(tensor)
    # The counts of a tensor take half a megabyte, so those of one group are kept at a time.
    ordered = [tensor for group in groups.values() for tensor in group]
    counts = measure_counts(ordered, advance, threads=threads)
    for group in groups.values():
        total = next(counts)
        for other in islice(counts, len(group) - 1):
            total.add(other)
        bins, limit = total.histogram(_BINS)
        infos = [each.info for each in group]
        label = kind(contents.entries[infos[0].name])[0]
        yield _MeasuredRow(infos, label, total.statistics(), bins.tolist(), limit)


def _heading(*, histogram: bool) -> list[Cell]:
    titles = [
        Cell("tensor"),
        Cell("shape", right=True, short=""),
        Cell("type", short=""),
        *_choose_columns(
            [Cell(title, right=True) for title in ("std", "mean", "min", "max", "99.9 % <")],
            Cell("outliers", right=True),
            histogram=histogram,
        ),
        *([Cell("distribution")] if histogram else []),
        Cell(""),
    ]
    return [cell._replace(style="bold") for cell in titles]


def _row(measured: _MeasuredRow, *, histogram: bool) -> list[Cell]:
    found, first = measured.found, measured.infos[0]
    figures = (found.std, found.mean, found.least, found.most, found.percentiles[-1])
    times = f"{len(measured.infos)} x " if len(measured.infos) > 1 else ""
    return [
        Cell(_fold_names([info.name for info in measured.infos])),
        Cell(times + shape_text(first.shape), "dim", right=True, short=""),
        Cell(measured.encoding, "cyan", short=""),
        *_choose_columns(
            [Cell(_figure(figure), right=True) for figure in figures],
            Cell(_share(found.outliers) if found.outliers else "", "yellow", right=True),
            histogram=histogram,
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


def _fold_names(names: Sequence[str]) -> str:
    """Return names that differ only in numbers as one name: `layers.[0-27].norm.weight`."""
    if len(names) == 1:
        return names[0]
    places = zip(*(_NUMBER.findall(name) for name in names), strict=True)
    texts = iter([join_ranges(sorted({*place}, key=int)) for place in places])
    return _NUMBER.sub(lambda _: next(texts), names[0])


def _count_special(found: Statistics) -> Cell:
    """Return how many values are NaN, infinite or zero; a narrow terminal shows no zeros."""
    bad = {"NaN": found.nans, "infinite": found.infinities}
    texts = [f"{count:,} {what}" for what, count in bad.items() if count]
    zeros = [f"{_share(found.zeros / found.size)} zeros"] if found.zeros else []
    style = "red" if texts else "yellow"
    return Cell(", ".join([*texts, *zeros]), style, short=", ".join(texts))


def _share(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1 else "100 %"


def _show_totals(measured: Sequence[_MeasuredRow], skipped: Sequence[str], *, quiet: bool) -> None:
    if quiet:
        return
    tensors = sum(len(each.infos) for each in measured)
    values = sum(each.found.size for each in measured)
    show_lines([[], [Cell(f"{pluralize(tensors, 'tensor')}, {pluralize(values, 'value')}")]])
    if skipped:
        verb = "has" if len(skipped) == 1 else "have"
        note(f"{pluralize(len(skipped), 'tensor')} {verb} no floating-point values: not measured")


def _document(measured: _MeasuredRow) -> Mapping[str, Any]:
    (info,) = measured.infos
    found = measured.found
    figures = dict(_list_figures(found))
    return {
        "name": info.name,
        "shape": list(info.shape),
        "encoding": measured.encoding,
        "count": found.size,
        **{key: value if isfinite(value) else None for key, value in figures.items()},
        "zeros": found.zeros,
        "nans": found.nans,
        "infinities": found.infinities,
        "histogram": {"limit": measured.limit, "counts": measured.bins},
    }


def _list_figures(found: Statistics) -> Iterator[tuple[str, float]]:
    yield from {"min": found.least, "max": found.most, "mean": found.mean, "std": found.std}.items()
    yield from zip(("abs_p50", "abs_p99", "abs_p99_9"), found.percentiles, strict=True)
    yield "outliers", found.outliers
