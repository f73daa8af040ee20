"""Draws heat maps of the errors of all tensors: a column per layer, a row per kind of weight."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from weightctl.text.wording import percent, pluralize
from weightctl.verify.ranking import badness_of, excess_of
from weightctl.verify.report.markup import (
    WIDTH,
    Markup,
    draw_label,
    draw_legend,
    draw_picture,
    element,
    join,
    make_axis,
)
from weightctl.verify.report.phrases import (
    DASH,
    TIMES,
    shorten,
    show_encodings,
    show_tick,
    show_times,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from weightctl.verify.figures import TensorError


__all__ = ["ErrorCell", "ErrorGrid", "draw_errors", "draw_excesses", "make_grid"]

_Place = TypeVar("_Place")

# The largest number of rows and columns; the report states how many tensors are left out.
_MOST_KINDS = 40
_MOST_LAYERS = 300
_LEFT, _TOP, _ROW, _FOOT = 188.0, 26.0, 20.0, 34.0
_WIDEST, _NARROWEST = 56.0, 6.0
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

    kinds: Sequence[str]
    layers: Sequence[int | None]
    cells: dict[tuple[str, int | None], ErrorCell]
    left_out: int


def make_grid(errors: Sequence[TensorError]) -> ErrorGrid:
    """Arrange tensors by kind and layer; a cell with several, such as experts, shows the worst."""
    cells: dict[tuple[str, int | None], ErrorCell] = {}
    for error in errors:
        place = _find_place(error)
        there = cells.get(place)
        if there is None:
            cells[place] = ErrorCell(1, error)
        else:
            worst = max(there.worst, error, key=badness_of)
            cells[place] = ErrorCell(there.tensors + 1, worst)
    kinds = _keep_worst(((kind, cell) for (kind, _), cell in cells.items()), _MOST_KINDS)
    layers = _keep_worst(((layer, cell) for (_, layer), cell in cells.items()), _MOST_LAYERS)
    shown = {
        place: cell for place, cell in cells.items() if place[0] in kinds and place[1] in layers
    }
    places = {layer for _, layer in shown}
    # Kinds that only have tensors outside the layers come last.
    inside = {kind for kind, layer in shown if layer is not None}
    return ErrorGrid(
        kinds=sorted(dict.fromkeys(kind for kind, _ in shown), key=lambda kind: kind not in inside),
        layers=sorted(places, key=lambda layer: -1 if layer is None else layer),
        cells=shown,
        left_out=len(errors) - sum(cell.tensors for cell in shown.values()),
    )


def _find_place(error: TensorError) -> tuple[str, int | None]:
    """Return the kind and the layer of a tensor.

    If the tensor has no layer, the first number in its name counts as one. Numbers in names, such
    as those of experts, do not distinguish kinds.
    """
    pieces = error.part.removesuffix(".weight").split(".")
    layer = error.layer
    if layer is None:
        first = next((n for n, piece in enumerate(pieces) if _is_number(piece)), None)
        if first is not None and len(pieces) > 1:
            layer = int(pieces[first])
    return ".".join("*" if _is_number(piece) else piece for piece in pieces), layer


def _is_number(piece: str) -> bool:
    return piece.isascii() and piece.isdigit() and len(piece) < 10


def _keep_worst(places: Iterable[tuple[_Place, ErrorCell]], most: int) -> set[_Place]:
    """Return the `most` places that have the worst tensors."""
    worst: dict[_Place, tuple[bool, float, float, float]] = {}
    for place, cell in places:
        found = badness_of(cell.worst)
        worst[place] = max(worst.get(place, found), found)
    return set(sorted(worst, key=worst.__getitem__, reverse=True)[:most])


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
        found = excess_of(error)
        level = sum(found > bound for bound in _BOUNDS)
        return f"r{level}"

    bounds = [f"{bound} {TIMES}" for bound in ("1¼", "2", "3", "6")]
    words = ["below ½", "½", "expected", *bounds]
    colors = [("same", "equal"), *((f"r{level}", text) for level, text in enumerate(words))]
    title = "Error of each tensor as a multiple of the expected error, by layer and part"
    return _draw_map(title, grid, color, colors)


def _draw_map(
    title: str,
    grid: ErrorGrid,
    color: Callable[[TensorError], str],
    colors: list[tuple[str, str]],
) -> Markup:
    step = min(max((WIDTH - _LEFT - 8) / max(len(grid.layers), 1), _NARROWEST), _WIDEST)
    columns = {layer: _LEFT + step * place for place, layer in enumerate(grid.layers)}
    rows = {kind: _TOP + _ROW * place for place, kind in enumerate(grid.kinds)}
    parts = [
        element(
            "g",
            draw_label(shorten(kind, 28), _LEFT - 8, y + 14, anchor="end", class_="name"),
            element("title", kind),
        )
        for kind, y in rows.items()
    ]
    bottom = _TOP + _ROW * len(rows)
    parts += _label_columns(columns, step)
    gap = 1.5 if step > 10 else 0.5
    for (kind, layer), cell in grid.cells.items():
        is_problem = cell.worst.is_problem
        parts.append(
            element(
                "rect",
                element("title", _describe_cell(cell, layer)),
                x=columns[layer],
                y=rows[kind],
                width=step - gap,
                height=_ROW - 1.5,
                rx=2 if step > 10 else None,
                class_=f"{color(cell.worst)} bad" if is_problem else color(cell.worst),
            )
        )
        if is_problem and step > 10:
            x, y = columns[layer] + (step - gap) / 2, rows[kind] + (_ROW - 1.5) / 2
            parts.append(
                element("path", d=f"M{x - 3:.1f} {y - 3:.1f}l6 6m0-6l-6 6", class_="cross")
            )
    parts.append(draw_legend([*colors, ("bad", "a problem")], _LEFT, bottom + 24))
    width = max(WIDTH, _LEFT + step * len(columns) + 8)
    return draw_picture(title, parts, bottom + _FOOT, width)


def _label_columns(columns: dict[int | None, float], step: float) -> list[Markup]:
    """Return labels with layer numbers above the columns, without those that would overlap."""
    labels: list[Markup] = []
    free = 0.0
    for layer, x in columns.items():
        text = DASH if layer is None else shorten(str(layer), 9)
        room = 7.0 * len(text) + 10
        middle = x + step / 2
        if middle - room / 2 >= free and (layer is None or _is_round(layer, step)):
            labels.append(draw_label(text, middle, _TOP - 8))
            free = middle + room / 2
    return labels


def _is_round(layer: int, step: float) -> bool:
    every = next(count for count in (1, 2, 5, 10, 20, 50, 100) if count * step > 32 or count == 100)
    return layer % every == 0


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
            f"{show_encodings(error)}: relative RMSE {percent(error.relative_rmse)}",
            f", expected {percent(error.expected)}{worst}",
        ]
    )
