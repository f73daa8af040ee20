"""Shows changes of values (`diff --values`) on the screen and in JSON."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from weightctl.cli.render import Cell
from weightctl.text.wording import number, percent, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from weightctl.cli.compared import Difference, LayerChange, ValueChange


def change_rows(differences: Mapping[str, Difference]) -> Iterator[Sequence[Cell]]:
    """Yield a heading and a row for each tensor whose values differ, in the given order."""
    yield [
        Cell("tensor", "bold"),
        Cell("type", "bold"),
        Cell("relative RMSE", "bold", right=True, short="rel. RMSE"),
        Cell("largest difference", "bold", right=True, short="largest"),
        Cell(""),
    ]
    for name, each in differences.items():
        if each.change is None or each.first is None or each.second is None:
            continue
        types = dict.fromkeys((each.first.encoding, each.second.encoding))
        yield [
            Cell(f"~ {name}", "yellow"),
            Cell(" -> ".join(types), "cyan"),
            *_figures(each.change),
        ]


def layer_rows(layers: Iterable[LayerChange]) -> Iterator[Sequence[Cell]]:
    """Yield a heading and a row for each layer, with the change of all its tensors together."""
    yield [
        Cell("layer", "bold"),
        Cell("tensors that differ", "bold", right=True, short="differ"),
        Cell("relative RMSE", "bold", right=True, short="rel. RMSE"),
        Cell("largest difference", "bold", right=True, short="largest"),
        Cell(""),
    ]
    for each in layers:
        yield [
            Cell("other" if each.layer is None else str(each.layer)),
            Cell(f"{each.changed} of {each.tensors}", right=True),
            *_figures(each.change),
        ]


def _figures(change: ValueChange) -> tuple[Cell, Cell, Cell]:
    mark = f"{pluralize(change.nonfinite, 'value')} NaN or infinite" if change.nonfinite else ""
    return (
        Cell("" if change.nonfinite else percent(change.relative_rmse), right=True),
        Cell(number(change.max_difference), right=True),
        Cell(mark, "red", short="NaN or inf" if mark else None),
    )


def summarize_changes(layers: Sequence[LayerChange], recoded: int) -> str:
    """Describe how many tensors have the same values, and how many have another encoding."""
    same = sum(each.tensors - each.changed for each in layers)
    counts = ((same, "the same values"), (recoded, "another encoding"))
    return "; ".join(
        f"{pluralize(count, 'tensor')} {'has' if count == 1 else 'have'} {what}"
        for count, what in counts
        if count
    )


def change_document(change: ValueChange | None) -> dict[str, Any] | None:
    """Return a change as a JSON object; figures that are not finite are null."""
    if change is None:
        return None
    figures = change._asdict()
    rmse, largest = (
        figures[key] if isfinite(figures[key]) else None
        for key in ("relative_rmse", "max_difference")
    )
    return {
        "relative_rmse": rmse,
        "max_difference": largest,
        "nonfinite": change.nonfinite,
    }


def layer_document(layer: LayerChange) -> dict[str, Any]:
    """Return the change of a layer as a JSON object."""
    return {
        "layer": layer.layer,
        "tensors": layer.tensors,
        "changed": layer.changed,
        "change": change_document(layer.change),
    }
