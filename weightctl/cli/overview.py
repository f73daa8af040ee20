"""A checkpoint at a glance: a few lines that sum it up, and its tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.cli.contents import kind, label
from weightctl.cli.outline import counted, outline
from weightctl.cli.render import Cell, described, printable
from weightctl.sizes import format_count, format_size
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from weightctl.cli.contents import Contents, Entry
    from weightctl.cli.outline import Line

__all__ = ["summary", "tree_rows"]


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
    bits = f", {totals.bits:.2f} bits per weight" if totals.bits is not None else ""
    return (
        f"{count}{of} {noun}{stored}, {format_count(totals.parameters)} parameters, "
        f"{format_size(totals.nbytes)}{bits}"
    )


def tree_rows(contents: Contents, depth: int | None) -> Iterator[Sequence[Cell]]:
    """Yield the rows that show the tree, `depth` levels of it or all."""
    for line in outline(contents.tree, contents.entries, _look(contents), depth):
        yield _row(line, contents)


def _look(contents: Contents) -> Callable[[Entry], tuple[object, int]]:
    extents = contents.weights.header.extents

    def look(entry: Entry) -> tuple[object, int]:
        if isinstance(entry, TensorInfo):
            name, shape, encoding = entry
            return (shape, encoding.name), extents[name].nbytes
        return (entry.shape, kind(entry)), entry.nbytes

    return look


def _row(line: Line[Entry], contents: Contents) -> Sequence[Cell]:
    times = f"  x{line.times}" if line.times > 1 else ""
    text = f"{'  ' * line.depth}{line.label}{times}"
    size = Cell(format_size(line.nbytes), "dim", right=True)
    entry = line.entry
    if entry is not None:
        mark = Cell("buffer" if entry.name in contents.buffers else "", "dim")
        stored = kind(entry)
        cells = described(entry.shape, label(stored), stored[0], line.times)
        return Cell(text), *cells, size, mark
    if line.name is not None:
        tied = f"{text} = {contents.aliases[line.name]}"
        return Cell(tied), Cell(""), Cell("tied", "cyan"), Cell("")
    count = counted(line.tensors, line.times)
    return Cell(text, "bold"), Cell(count, "dim", right=True), Cell(""), size
