"""Draws heat maps of the errors of all tensors: a column per layer, a row per kind of weight."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from weightctl.page.grid import GridCell, draw_grid, find_place, keep_worst
from weightctl.page.labels import TIMES, shorten, show_tick, show_times
from weightctl.page.markup import Markup, join, make_axis
from weightctl.text.wording import percent, pluralize
from weightctl.verify.figures import badness_of, excess_of
from weightctl.verify.report.phrases import show_encodings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.verify.figures import TensorError


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
            worst = max(there.worst, error, key=badness_of)
            cells[place] = ErrorCell(there.tensors + 1, worst)
    shown = keep_worst(cells, lambda cell: badness_of(cell.worst))
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
        found = excess_of(error)
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
            f"{show_encodings(error)}: relative RMSE {percent(error.relative_rmse)}",
            f", expected {percent(error.expected)}{worst}",
        ]
    )


def _draw_map(
    title: str,
    grid: ErrorGrid,
    color: Callable[[TensorError], str],
    colors: list[tuple[str, str]],
) -> Markup:
    cells = {
        (kind, layer): GridCell(
            color(cell.worst), _describe_cell(cell, layer), cell.worst.is_problem
        )
        for (kind, layer), cell in grid.cells.items()
    }
    return draw_grid(title, cells, colors)
