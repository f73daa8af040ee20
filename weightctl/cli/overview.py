"""A checkpoint at a glance: a few lines that sum it up, and its tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.cli.contents import kind, label
from weightctl.cli.outline import format_tensor_count, outline
from weightctl.cli.render import Cell, make_shape_cells, shorten_text
from weightctl.cli.splits import split_cells
from weightctl.text.sizes import format_count, format_size
from weightctl.text.wording import printable
from weightctl.weights.info import Leaf, TensorInfo
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from weightctl.cli.contents import Contents, Entry
    from weightctl.cli.outline import OutlineLine

__all__ = ["summary", "tree_rows"]

# A tensor or value that is the whole of its file has no name.
_UNNAMED = "(unnamed)"
_LOOK = 28


def summary(path: str, contents: Contents) -> list[list[Cell]]:
    """Return the lines that say what there is at a path, and how much."""
    title = [Cell(printable(path), "bold"), Cell(f": {printable(contents.title(path))}")]
    lines = [title, [Cell(_amounts(contents))]]
    by_kind = contents.totals.by_kind
    if len(by_kind) > 1:
        total = sum(by_kind.values()) or 1
        shares = (
            f"{stored} {format_size(nbytes)} ({100 * nbytes / total:.1f} %)"
            for stored, nbytes in by_kind.items()
        )
        lines.append([Cell(", ".join(shares))])
    adapter = contents.adapter
    if adapter is not None:
        noun = "rank" if len(adapter.ranks) == 1 else "ranks"
        ranks = ", ".join(map(str, adapter.ranks))
        alpha = "" if adapter.alpha is None else f", alpha {adapter.alpha:g},"
        matrices = f"{adapter.matrices} {'matrix' if adapter.matrices == 1 else 'matrices'}"
        base = f", for {adapter.base}" if adapter.base else ""
        text = f"LoRA adapter of {noun} {ranks}{alpha} on {matrices}{base}"
        lines.append([Cell(printable(text))])
    return lines


def _amounts(contents: Contents) -> str:
    totals, count = contents.totals, len(contents.entries)
    of = f" of {contents.count}" if count < contents.count else ""
    noun = "tensor" if contents.count == 1 else "tensors"
    stored = f" ({len(contents.tensors)} as stored)" if contents.quantized else ""
    values = f", {_format_value_count(len(contents.leaves))}" if contents.leaves else ""
    bits = f", {totals.bits:.2f} bits per weight" if totals.bits is not None else ""
    return (
        f"{count}{of} {noun}{stored}{values}, {format_count(totals.parameters)} parameters, "
        f"{format_size(totals.nbytes)}{bits}"
    )


def _format_value_count(count: int) -> str:
    return "1 value" if count == 1 else f"{count} values"


def tree_rows(contents: Contents, depth: int | None) -> Iterator[Sequence[Cell]]:
    """Yield the rows that show the tree, `depth` levels of it or all."""
    entries: Mapping[str, Entry | Leaf] = {**contents.leaves, **contents.entries}
    for line in outline(contents.tree, entries, _look(contents), depth):
        yield _row(line, contents)


def _look(contents: Contents) -> Callable[[Entry | Leaf], tuple[object, int, int]]:
    header = header_of(contents.weights)
    extents, shardings = header.extents, header.shardings

    def look(entry: Entry | Leaf) -> tuple[object, int, int]:
        if isinstance(entry, TensorInfo):
            name, shape, encoding = entry
            return (shape, encoding.name, shardings.get(name)), 1, extents[name].nbytes
        if isinstance(entry, Leaf):
            return entry, 0, 0
        cut = tuple(map(shardings.get, entry.tensors))
        return (entry.shape, kind(entry), cut), 1, entry.nbytes

    return look


def _row(line: OutlineLine[Entry | Leaf], contents: Contents) -> Sequence[Cell]:
    times = f"  x{line.times}" if line.times > 1 else ""
    text = f"{'  ' * line.depth}{line.label or _UNNAMED}{times}"
    size = Cell(format_size(line.nbytes) if line.tensors else "", "dim", right=True)
    entry = line.entry
    if isinstance(entry, Leaf):
        # Beside what something holds stands how much that is; the class of an object is its look.
        below = Cell(format_tensor_count(line.tensors, line.times), "dim", right=True)
        looks = entry.look or (entry.kind if "." in entry.kind else "")
        stated = "object" if "." in entry.kind and not entry.look else entry.kind
        brief = shorten_text(printable(looks), _LOOK)
        return Cell(text), below, Cell(stated, "cyan"), size, Cell(looks, "dim", short=brief)
    if entry is not None:
        mark = Cell(contents.buffers.get(entry.name, ""), "dim")
        stored = kind(entry)
        cells = make_shape_cells(entry.shape, label(stored), stored[0], line.times)
        # What scales packed numbers is cut as they are.
        packed = entry.name if isinstance(entry, TensorInfo) else entry.tensors[0]
        return Cell(text), *cells, size, mark, *split_cells(header_of(contents.weights), packed)
    if line.name is not None:
        tied = f"{text} = {contents.aliases[line.name]}"
        return Cell(tied), Cell(""), Cell("tied", "cyan"), Cell("")
    below = Cell(format_tensor_count(line.tensors, line.times), "dim", right=True)
    return Cell(text, "bold"), below, Cell(""), size
