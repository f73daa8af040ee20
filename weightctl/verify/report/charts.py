"""Draws the charts of a report: outputs of parts, divergences, and errors of all tensors."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from weightctl.text.page.grid import GridCell, draw_grid, find_place, keep_worst
from weightctl.text.page.markup import (
    HEIGHT,
    TIMES,
    WIDTH,
    Markup,
    draw_label,
    draw_legend,
    draw_line,
    draw_picture,
    element,
    join,
    make_axis,
    shorten,
    show_decimal,
    show_tick,
    show_times,
)
from weightctl.text.wording import number, percent, pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.text.page.markup import Axis
    from weightctl.verify.figures import (
        Activation,
        Divergence,
        DivergenceBin,
        LayerDivergence,
        TensorError,
    )


_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 20.0, 34.0, 34.0
_LAYER = "layers."
_MARGIN, _OUTER, _ABOVE_BARS, _BELOW_BARS = 62.0, 20.0, 40.0, 46.0


class _Frame(NamedTuple):
    """The frame of a chart: the x positions of the model's parts, the y axis, and grid lines."""

    places: list[float]
    axis: Axis
    lines: list[Markup]


def draw_activations(activations: Sequence[Activation]) -> Markup:
    """Return a chart of the root mean square and the largest value of each part's output."""
    values = [value for part in activations for value in (part.rms, part.greatest)]
    frame = _draw_frame([part.name for part in activations], values)
    parts = list(frame.lines)
    for class_, heights in (
        ("second", [part.greatest for part in activations]),
        ("first", [part.rms for part in activations]),
    ):
        points = [
            (x, frame.axis.at(height)) for x, height in zip(frame.places, heights, strict=True)
        ]
        path = "L".join(f"{show_decimal(x)} {show_decimal(y)}" for x, y in points)
        parts.append(element("path", d=f"M{path}", class_=f"curve {class_}"))
        if len(points) <= 64:
            parts += [
                element("circle", cx=x, cy=y, r=2.5, class_=f"dot {class_}") for x, y in points
            ]
    for part, x in zip(activations, frame.places, strict=True):
        text = (
            f"{shorten(part.name, 60)}: root mean square {number(part.rms)}, largest value "
            f"{number(part.greatest)}"
        )
        if part.nonfinite:
            text += f", {pluralize(part.nonfinite, 'value')} NaN or infinite"
            y = frame.axis.at(part.rms)
            parts.append(element("circle", cx=x, cy=y, r=5, class_="dot bad"))
        parts.append(_draw_tooltip(x, frame, text))
    entries = [("second", "largest value"), ("first", "root mean square")]
    if any(part.nonfinite for part in activations):
        entries.append(("bad", "NaN or infinite values"))
    parts.append(draw_legend(entries, _LEFT, 16))
    return draw_picture(
        "Root mean square and largest value of the output of each part of the model", parts
    )


def draw_divergences(layers: Sequence[LayerDivergence]) -> Markup:
    """Return a chart of each part's divergence from the reference, and of the expected one."""
    values = [value for part in layers for value in (part.divergence, part.expected)]
    frame = _draw_frame([part.name for part in layers], values, in_percent=True)
    parts = list(frame.lines)
    step = (WIDTH - _LEFT - _RIGHT) / max(len(layers), 1)
    half = min(max(step / 2 - 1, 2), 9)
    for part, x in zip(layers, frame.places, strict=True):
        usual, y = frame.axis.at(part.expected), frame.axis.at(part.divergence)
        if part.expected > 0:
            parts.append(draw_line(x - half, usual, x + half, usual, "usual"))
        kind = "bad" if part.is_problem else "first"
        if part.is_problem:
            parts.append(draw_line(x, usual, x, y, "stem bad"))
        radius = 5 if part.is_problem else min(3.5, half)
        parts.append(element("circle", cx=x, cy=y, r=radius, class_=f"dot {kind}"))
        text = (
            f"{shorten(part.name, 60)}: {percent(part.divergence)}, expected "
            f"{percent(part.expected)} "
            f"({show_times(part.excess)})"
        )
        parts.append(_draw_tooltip(x, frame, text))
    entries = [("first", "divergence"), ("usual", "expected from the encodings")]
    if any(part.is_problem for part in layers):
        entries.append(("bad", "a problem"))
    parts.append(draw_legend(entries, _LEFT, 16))
    return draw_picture("Difference of each part of the model from the reference", parts)


def _draw_frame(
    names: Sequence[str], values: Sequence[float], *, in_percent: bool = False
) -> _Frame:
    def show_value(value: float) -> str:
        return f"{show_tick(100 * value)} %" if in_percent else show_tick(value)

    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    scale = make_axis(values, bottom, _TOP)
    lines = [
        join(
            [
                draw_line(_LEFT, scale.at(value), right, scale.at(value)),
                draw_label(show_value(value), _LEFT - 8, scale.at(value) + 4, anchor="end"),
            ]
        )
        for value in scale.ticks()
    ]
    inner = right - _LEFT - 24
    step = inner / max(len(names) - 1, 1)
    places = [_LEFT + 12 + step * place for place in range(len(names))]
    return _Frame(places, scale, [*lines, *_label_parts(names, places)])


def _label_parts(names: Sequence[str], places: list[float]) -> list[Markup]:
    """Return labels of the parts, without those that would overlap."""
    labels: list[Markup] = []
    y = HEIGHT - _BOTTOM + 20
    texts = [shorten(name.removeprefix(_LAYER), 14) for name in names]
    taken: list[tuple[float, float]] = []
    # Parts that are not layers are labeled first.
    order = sorted(range(len(names)), key=lambda place: (names[place].startswith(_LAYER), place))
    for every in (10, 5, 2, 1):
        for place in order:
            text, x = texts[place], places[place]
            if text.isdecimal() and (int(text) % every or (every == 1 and len(names) > 45)):
                continue
            half = 3.6 * len(text) + 4
            x = min(max(x, _LEFT - 40 + half), WIDTH - half)
            if all(x + half <= low or x - half >= high for low, high in taken):
                taken.append((x - half, x + half))
                labels.append(draw_label(text, x, y))
    return labels


def _draw_tooltip(x: float, frame: _Frame, text: str) -> Markup:
    """Return an invisible area, as high as the chart, that shows a text under the pointer."""
    half = (frame.places[1] - frame.places[0]) / 2 if len(frame.places) > 1 else 20.0
    left, right = max(x - half, _LEFT), min(x + half, WIDTH - _RIGHT)
    return element(
        "rect",
        element("title", text),
        x=left,
        y=_TOP,
        width=right - left,
        height=HEIGHT - _TOP - _BOTTOM,
        class_="sense",
    )


def draw_histogram(divergence: Divergence) -> Markup:
    """Return a histogram of positions by divergence, without the empty bins at its ends."""
    bars = _trim(divergence.histogram)
    bounds = [below for below, _ in bars]
    most = max((count for _, count in bars), default=0) or 1
    total = sum(count for _, count in divergence.histogram) or 1
    bottom, inner = HEIGHT - _BELOW_BARS, WIDTH - _MARGIN - _OUTER
    step = min(inner / max(len(bars), 1), 90)
    every = -(-len(bars) // 16) or 1
    parts: list[Markup] = []
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * (bottom - _ABOVE_BARS)
        text = f"{100 * share * most / total:.0f} %"
        parts += [
            draw_line(_MARGIN, y, _MARGIN + step * len(bars), y),
            draw_label(text, _MARGIN - 8, y + 4, anchor="end"),
        ]
    for place, (below, count) in enumerate(bars):
        x, height = _MARGIN + step * place, count / most * (bottom - _ABOVE_BARS)
        parts.append(
            element(
                "rect",
                element("title", f"{pluralize(count, 'position')} below {number(below)} nats"),
                x=x + 1, y=bottom - height, width=max(step - 2, 1), height=max(height, 0.0),
                class_="first",
            )
        )  # fmt: skip
        if place % every == 0:
            parts.append(draw_label(show_tick(below), x + step, bottom + 18))
    for value, words, y in (
        (divergence.mean, "mean", 14.0),
        (divergence.percentile_99, "99th percentile", 30.0),
    ):
        within = _find_bar(value, bounds)
        if within is not None:
            x = _MARGIN + step * within
            anchor, shift = ("start", 5) if x < WIDTH - 110 else ("end", -5)
            parts += [
                draw_line(x, y - 10, x, bottom, "mark"),
                draw_label(words, x + shift, y, anchor=anchor),
            ]
    parts.append(
        draw_label(
            "KL divergence of a position, in nats (upper bound)",
            _MARGIN,
            HEIGHT - 6,
            anchor="start",
        )
    )
    return draw_picture("Histogram of the KL divergence of each position", parts)


def _trim(histogram: Sequence[DivergenceBin]) -> list[DivergenceBin]:
    held = [place for place, (_, count) in enumerate(histogram) if count]
    if not held:
        return list(histogram)
    return list(histogram[max(held[0] - 1, 0) : held[-1] + 2])


def _find_bar(value: float | None, bounds: Sequence[float]) -> float | None:
    """Return the position of a value in units of bars; None if it is outside the bars."""
    if value is None or not isfinite(value) or value < 0:
        return None
    for place, below in enumerate(bounds):
        if value < below:
            low = bounds[place - 1] if place else 0.0
            within = (value - low) / (below - low) if isfinite(below) else 0.5
            return place + within
    return None


# Heat maps of the errors of all tensors: a column per layer, a row per kind of weight.


_LEVELS = 9
# The upper bounds of the colors, as multiples of the usual error; larger errors have the last
# color.
_BOUNDS = (0.5, 0.8, 1.25, 2.0, 3.0, 6.0)


class ErrorCell(NamedTuple):
    """The tensors of one kind in one layer: their number, and the worst of them."""

    tensors: int
    worst: TensorError


class ErrorGrid(NamedTuple):
    """Tensors by kind and layer; the layer is None for tensors outside the layers.

    `left_out` is the number of tensors that are not shown, because the grid would be too large.
    """

    cells: dict[tuple[str, int | None], ErrorCell]
    left_out: int


def make_grid(errors: Sequence[TensorError]) -> ErrorGrid:
    """Arrange tensors by kind and layer; a cell with several, such as experts, shows the worst."""
    cells: dict[tuple[str, int | None], ErrorCell] = {}
    for error in errors:
        place = find_place(error.part, error.layer)
        there = cells.get(place)
        if there is None:
            cells[place] = ErrorCell(1, error)
        else:
            worst = max(there.worst, error, key=lambda error: error.badness)
            cells[place] = ErrorCell(there.tensors + 1, worst)
    shown = keep_worst(cells, lambda cell: cell.worst.badness)
    return ErrorGrid(shown, len(errors) - sum(cell.tensors for cell in shown.values()))


def draw_errors(grid: ErrorGrid) -> Markup:
    """Return a heat map of the relative RMSE of tensors."""
    worst = [cell.worst for cell in grid.cells.values()]
    sound = [error.relative_rmse for error in worst if not error.is_problem]
    scale = make_axis(
        sound or [error.relative_rmse for error in worst], 0, _LEVELS - 1, decades=0.65
    )

    def color(error: TensorError) -> str:
        if error.relative_rmse == 0:
            return "same"
        return f"h{round(scale.at(error.relative_rmse))}"

    steps = [
        (f"h{level}", 10 ** (scale.low + (scale.high - scale.low) * level / (_LEVELS - 1)))
        for level in range(0, _LEVELS, 2)
    ]
    colors = [
        ("same", "equal"),
        *((class_, f"{show_tick(100 * value)} %") for class_, value in steps),
    ]
    return _draw_map("Relative RMSE of each tensor, by layer and part", grid, color, colors)


def draw_excesses(grid: ErrorGrid) -> Markup:
    """Return a heat map of errors as multiples of the errors that the encodings explain."""

    def color(error: TensorError) -> str:
        if error.relative_rmse == error.expected == 0:
            return "same"
        found = error.excess
        level = sum(found > bound for bound in _BOUNDS)
        return f"r{level}"

    bounds = [f"{bound} {TIMES}" for bound in ("1¼", "2", "3", "6")]
    words = ["below ½", "½", "expected", *bounds]
    colors = [("same", "equal"), *((f"r{level}", text) for level, text in enumerate(words))]
    title = "Error of each tensor as a multiple of the expected error, by layer and part"
    return _draw_map(title, grid, color, colors)


def _describe_cell(cell: ErrorCell, layer: int | None) -> Markup:
    error = cell.worst
    which = f" (the largest of {pluralize(cell.tensors, 'tensor')})" if cell.tensors > 1 else ""
    place = "" if layer is None else f", layer {shorten(str(layer), 9)}"
    worst = (
        f", largest in a group {show_times(error.worst)}"
        if isfinite(error.worst) and error.worst
        else ""
    )
    return join(
        [
            f"{shorten(error.name, 120)}{which}{place}",
            Markup("&#10;"),
            f"{error.encodings}: relative RMSE {percent(error.relative_rmse)}",
            f", expected {percent(error.expected)}{worst}",
        ]
    )


def _draw_map(
    title: str, grid: ErrorGrid, color: Callable[[TensorError], str], colors: list[tuple[str, str]]
) -> Markup:
    cells = {
        (kind, layer): GridCell(
            color(cell.worst), _describe_cell(cell, layer), cell.worst.is_problem
        )
        for (kind, layer), cell in grid.cells.items()
    }
    return draw_grid(title, cells, colors)
