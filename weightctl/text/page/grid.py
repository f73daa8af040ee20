"""Draws heat maps of tensors: a column per layer, a row per kind of weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from weightctl.text.page.markup import (
    DASH,
    WIDTH,
    Markup,
    draw_label,
    draw_legend,
    draw_picture,
    element,
    shorten,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from _typeshed import SupportsRichComparison

_Cell = TypeVar("_Cell")
_Place = TypeVar("_Place")

# The largest number of rows and columns.
_MOST_KINDS = 40
_MOST_LAYERS = 300
_LEFT, _TOP, _ROW, _FOOT = 188.0, 26.0, 20.0, 34.0
_WIDEST, _NARROWEST = 56.0, 6.0


class GridCell(NamedTuple):
    """A cell: the CSS class of its color, its description, and whether it has a problem."""

    color: str
    description: Markup
    is_problem: bool = False


def find_place(name: str, layer: int | None = None) -> tuple[str, int | None]:
    """Return the kind and the layer of a tensor.

    If the layer is not known, the first number in the name is the layer. Numbers in names, such as
    those of experts, do not distinguish kinds.
    """
    pieces = name.removesuffix(".weight").split(".")
    if layer is None:
        first = next((n for n, piece in enumerate(pieces) if _is_number(piece)), None)
        if first is not None and len(pieces) > 1:
            layer = int(pieces[first])
    return ".".join("*" if _is_number(piece) else piece for piece in pieces), layer


def _is_number(piece: str) -> bool:
    return piece.isascii() and piece.isdigit() and len(piece) < 10


def keep_worst(
    cells: Mapping[tuple[str, int | None], _Cell],
    rank: Callable[[_Cell], SupportsRichComparison],
) -> dict[tuple[str, int | None], _Cell]:
    """Return the cells of a grid that fits on a page: the kinds and layers of the worst tensors.

    Of two cells, the one with the higher rank is worse.
    """
    kinds = _keep(((kind, rank(cell)) for (kind, _), cell in cells.items()), _MOST_KINDS)
    layers = _keep(((layer, rank(cell)) for (_, layer), cell in cells.items()), _MOST_LAYERS)
    return {
        (kind, layer): cell
        for (kind, layer), cell in cells.items()
        if kind in kinds and layer in layers
    }


def _keep(ranks: Iterable[tuple[_Place, SupportsRichComparison]], most: int) -> set[_Place]:
    worst = dict(sorted(ranks, key=lambda ranked: ranked[1]))  # the last of each place is its worst
    return set(sorted(worst, key=worst.__getitem__, reverse=True)[:most])


def draw_grid(
    title: str, cells: Mapping[tuple[str, int | None], GridCell], legend: list[tuple[str, str]]
) -> Markup:
    """Return a heat map of cells by kind and layer; the layer is None outside the layers.

    Kinds that only have tensors outside the layers come last. Entries of the legend are the CSS
    class of a color and a text.
    """
    layers = sorted({layer for _, layer in cells}, key=lambda layer: -1 if layer is None else layer)
    inside = {kind for kind, layer in cells if layer is not None}
    kinds = sorted(dict.fromkeys(kind for kind, _ in cells), key=lambda kind: kind not in inside)
    step = min(max((WIDTH - _LEFT - 8) / max(len(layers), 1), _NARROWEST), _WIDEST)
    columns = {layer: _LEFT + step * place for place, layer in enumerate(layers)}
    rows = {kind: _TOP + _ROW * place for place, kind in enumerate(kinds)}
    parts = _label_rows(rows) + _label_columns(columns, step)
    for (kind, layer), cell in cells.items():
        parts += _draw_cell(cell, columns[layer], rows[kind], step)
    bottom = _TOP + _ROW * len(rows)
    parts.append(draw_legend([*legend, ("bad", "a problem")], _LEFT, bottom + 24))
    width = max(WIDTH, _LEFT + step * len(columns) + 8)
    return draw_picture(title, parts, bottom + _FOOT, width)


def _draw_cell(cell: GridCell, x: float, y: float, step: float) -> list[Markup]:
    gap = 1.5 if step > 10 else 0.5
    parts = [
        element(
            "rect",
            element("title", cell.description),
            x=x,
            y=y,
            width=step - gap,
            height=_ROW - 1.5,
            rx=2 if step > 10 else None,
            class_=f"{cell.color} bad" if cell.is_problem else cell.color,
        )
    ]
    if cell.is_problem and step > 10:
        x, y = x + (step - gap) / 2, y + (_ROW - 1.5) / 2
        parts.append(element("path", d=f"M{x - 3:.1f} {y - 3:.1f}l6 6m0-6l-6 6", class_="cross"))
    return parts


def _label_rows(rows: Mapping[str, float]) -> list[Markup]:
    return [
        element(
            "g",
            draw_label(shorten(kind, 28), _LEFT - 8, y + 14, anchor="end", class_="name"),
            element("title", kind),
        )
        for kind, y in rows.items()
    ]


def _label_columns(columns: Mapping[int | None, float], step: float) -> list[Markup]:
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
