"""Where a tensor stands in a picture of all: a row for what it is, a column for its layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from weightctl.verify.report.ranking import badness

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weightctl.verify.figures import TensorError

__all__ = ["Cell", "Grid", "grid"]

_Place = TypeVar("_Place")

# So many rows and columns are drawn, and what has no room is told.
_MOST_KINDS = 40
_MOST_LAYERS = 300


class Cell(NamedTuple):
    """What is drawn of the tensors of a kind in a layer: how many they are, and the worst."""

    tensors: int
    worst: TensorError


class Grid(NamedTuple):
    """Tensors by what they are and by their layer, None for those outside the layers.

    `left_out` counts the tensors for which there is no room.
    """

    kinds: Sequence[str]
    layers: Sequence[int | None]
    cells: dict[tuple[str, int | None], Cell]
    left_out: int


def grid(errors: Sequence[TensorError]) -> Grid:
    """Return tensors by kind and layer; of several in one place, as experts are, the worst."""
    cells: dict[tuple[str, int | None], Cell] = {}
    for error in errors:
        place = _place(error)
        there = cells.get(place)
        if there is None:
            cells[place] = Cell(1, error)
        else:
            worst = max(there.worst, error, key=badness)
            cells[place] = Cell(there.tensors + 1, worst)
    kinds = _worst(((kind, cell) for (kind, _), cell in cells.items()), _MOST_KINDS)
    layers = _worst(((layer, cell) for (_, layer), cell in cells.items()), _MOST_LAYERS)
    shown = {
        place: cell for place, cell in cells.items() if place[0] in kinds and place[1] in layers
    }
    places = {layer for _, layer in shown}
    # Rows that only have something outside the layers stand below the others.
    inside = {kind for kind, layer in shown if layer is not None}
    return Grid(
        kinds=sorted(dict.fromkeys(kind for kind, _ in shown), key=lambda kind: kind not in inside),
        layers=sorted(places, key=lambda layer: -1 if layer is None else layer),
        cells=shown,
        left_out=len(errors) - sum(cell.tensors for cell in shown.values()),
    )


def _place(error: TensorError) -> tuple[str, int | None]:
    """Return what kind of tensor one is, and its layer.

    Where no family says which, the layer is the first number in the name. Other numbers are those
    of experts and the like, and make no kinds.
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


def _worst(places: Iterable[tuple[_Place, Cell]], most: int) -> set[_Place]:
    """Return so many of the places, those with the worst tensors."""
    worst: dict[_Place, tuple[bool, float, float, float]] = {}
    for place, cell in places:
        found = badness(cell.worst)
        worst[place] = max(worst.get(place, found), found)
    return set(sorted(worst, key=worst.__getitem__, reverse=True)[:most])
