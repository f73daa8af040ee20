"""Shows a model's behavior as charts and tables: activations, divergence, and next tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from weightctl.cli.chart import Bar, chart
from weightctl.cli.render import Cell, in_columns, shape_text
from weightctl.cli.wrapping import hung
from weightctl.text.wording import number, percent, printable
from weightctl.verify.figures import ForwardFigures, ValuesFigures, show_cosine
from weightctl.verify.ranking import (
    choose_title,
    excess_of,
    sort_strangest_first,
    sort_worst_first,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.verify.figures import Divergence, NextToken
    from weightctl.verify.results import Report

_WORST = 5
# On terminals with fewer columns, the table of tensors leaves out a column.
_FOR_ALL = 100
_SHORT = {"embedding": "in", "output": "out"}

Lines = list[list[Cell]]


def behavior(report: Report, columns: int, room: int | None, *, plain: bool = False) -> Lines:
    """Return the lines that show the errors of tensors and the figures of the model's run.

    Charts have at most `columns` columns. Sentences and tables have at most `room` columns; if
    `room` is None, they are not wrapped.
    """
    values, forward = report.figures(ValuesFigures), report.figures(ForwardFigures)
    # A comparison lists its tensors as differences.
    blocks = [_worst_tensors(values, room)] if values and not report.comparison else []
    if forward:
        divergence = forward.divergence
        blocks += [
            _activations(forward, columns, plain=plain),
            _divergences(divergence, columns, plain=plain) if divergence else [],
            _agreement(divergence, room) if divergence else [],
            _gains(forward, room),
            _next_tokens(forward, room),
        ]
    return [line for block in blocks if block for line in ([], *block)]


def _worst_tensors(values: ValuesFigures, room: int | None) -> Lines:
    off = [error for error in values.tensors if error.relative_rmse or error.is_problem]
    worst = sort_worst_first(off)[:_WORST]
    if not worst:
        return []
    heads = [Cell("  tensor", "dim"), Cell("")]
    heads += [
        Cell("relative RMSE", "dim", short="RMSE", right=True),
        *(
            Cell(text, "dim", right=True)
            for text in ("expected", "ratio", "max difference", "cosine")
        ),
    ]
    rows = [heads]
    for error in worst:
        style = "red" if error.is_problem else ""
        pair = " ~ ".join(dict.fromkeys((error.encoding, error.reference_encoding)))
        rows.append(
            [
                Cell(f"  {error.name}", style),
                Cell(pair, "cyan", short=error.encoding),
                Cell(percent(error.relative_rmse), style, right=True),
                Cell(percent(error.expected), right=True),
                Cell(number(excess_of(error)), style, right=True),
                Cell(number(error.max_error), right=True),
                Cell(show_cosine(error.cosine), right=True),
            ]
        )
    if room is not None and room < _FOR_ALL:
        rows = [[*row[:5], *row[6:]] for row in rows]
    return [*hung([], choose_title(off), room, "bold"), *in_columns(rows, room)]


def _title(text: str, columns: int) -> Lines:
    return hung([], text, columns, "bold")


def _label(name: str) -> str:
    return _SHORT.get(name, name.rpartition(".")[2])


def _activations(forward: ForwardFigures, columns: int, *, plain: bool) -> Lines:
    if not forward.activations:
        return []
    bars = [
        Bar(_label(each.name), math.inf if each.nonfinite else each.rms, bool(each.nonfinite))
        for each in forward.activations
    ]
    if not any(math.isfinite(bar.value) for bar in bars):
        return _title("activations: the output of every layer is NaN or infinite", columns)
    title = "activations: root mean square of each layer's output (log scale)"
    mark = _explain_marks("NaN or infinite values", bars, columns, plain=plain)
    return [*_title(title, columns), *chart(bars, columns, plain=plain), *mark]


def _explain_marks(meaning: str, bars: Sequence[Bar], columns: int, *, plain: bool) -> Lines:
    """Return the line that explains the marks below bars; nothing if no bar is marked."""
    if not any(bar.is_bad for bar in bars):
        return []
    return hung([Cell("  "), Cell("^ " if plain else "▲ ", "red")], meaning, columns, "dim")


def _divergences(divergence: Divergence, columns: int, *, plain: bool) -> Lines:
    beyond = [each for each in divergence.layers if each.is_problem]
    if not beyond:
        return []
    bars = [Bar(_label(each.name), each.divergence, each.is_problem) for each in divergence.layers]
    first = beyond[0]
    usual = f"expected {percent(first.expected)}" if first.expected else "expected none"
    finding = f"first: {first.name}, {percent(first.divergence)}, {usual}"
    title = "divergence: each layer compared with the reference"
    if not any(0 < bar.value < math.inf for bar in bars):
        return [*_title(title, columns), *hung([Cell("  ")], finding, columns, "red")]
    title += " (log scale)"
    meaning = f"above the expected divergence; {finding}"
    return [
        *_title(title, columns),
        *chart(bars, columns, plain=plain),
        *_explain_marks(meaning, bars, columns, plain=plain),
    ]


def _agreement(divergence: Divergence, room: int | None) -> Lines:
    if divergence.mean is None:
        return []
    figures = [f"mean {number(divergence.mean)}"]
    if divergence.percentile_99 is not None:
        figures.append(f"99th percentile {number(divergence.percentile_99)}")
    if divergence.greatest is not None:
        figures.append(f"largest {number(divergence.greatest)}")
    lines = hung([Cell("KL divergence ", "bold")], f"{', '.join(figures)} nats", room)
    if divergence.top_1 is not None:
        text = f"at {percent(divergence.top_1)} of positions"
        lines += hung([Cell("same top token ", "bold")], text, room)
    return lines


def _gains(forward: ForwardFigures, room: int | None) -> Lines:
    """Return a table of the matrices whose gain is farthest from the usual gain."""
    strange = sort_strangest_first(forward.matrices)
    if not strange:
        return []
    heads = ("matrices, each on a random unit vector", "", "length", "expected")
    rows = [[Cell(text, "dim", right=place > 0) for place, text in enumerate(heads)]]
    rows += [
        [
            Cell(f"  {each.name}"),
            Cell(shape_text(each.shape), right=True),
            Cell(number(each.gain), right=True),
            Cell(number(each.usual), right=True),
        ]
        for each in strange[:_WORST]
    ]
    return in_columns(rows, room)


def _next_tokens(forward: ForwardFigures, room: int | None) -> Lines:
    if not forward.next_tokens:
        return []
    texts: Sequence[str] = [
        f"{_token(each)} {percent(each.probability)}" for each in forward.next_tokens
    ]
    return hung([Cell("next token ", "bold")], ", ".join(texts), room)


def _token(token: NextToken) -> str:
    return f"“{printable(token.text)}”" if token.text else f"token {token.token}"
