"""`weightctl ls`: what is in a checkpoint."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightctl.cli.options import From, Json, Path, Quiet, examples
from weightctl.cli.outline import counted, outline
from weightctl.cli.render import Cell, note, printable, show_lines, show_table, show_text
from weightctl.formats.huggingface import config
from weightctl.sizes import format_count, format_size
from weightctl.store import open_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from weightctl.cli.outline import Line
    from weightctl.weights.info import Header, TensorInfo
    from weightctl.weights.tree import Weights

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command(
    epilog=examples(
        [
            "weightctl ls fixtures/tiny-llama",
            "weightctl ls fixtures/tiny-llama --depth 2",
            "weightctl ls fixtures/tiny-llama --flat | grep norm",
            "weightctl ls fixtures/tiny-llama --json",
        ]
    )
)
def ls(
    *,
    path: Path,
    depth: Annotated[
        int | None, typer.Option("--depth", min=1, help="Show this many levels of the tree.")
    ] = None,
    flat: Annotated[bool, typer.Option("--flat", help="Show each tensor on a line.")] = False,
    as_json: Json = False,
    source: From = None,
    quiet: Quiet = False,
) -> None:
    """Show what is in a checkpoint: its tensors, their shapes, encodings and sizes.

    Layers that are alike are shown once. Only headers are read, so size does not matter.
    """
    weights = open_weights(path, source)
    header = weights.header
    if not quiet:
        for text in header.notes:
            note(text)
    if as_json:
        show_text(json.dumps(_document(path, weights), indent=2) + "\n")
        return
    if flat:
        show_table(_flat(weights))
        return
    show_lines(_summary(path, weights))
    if header.tensors:
        show_lines([[]])
        show_table(
            _row(line, header)
            for line in outline(weights.tree, header.tensors, _kinds(header), depth)
        )


def _flat(weights: Weights) -> Iterator[Sequence[Cell]]:
    for name, node in weights.items():
        info = node.info
        size = "tied" if name in weights.header.aliases else format_size(info.nbytes)
        yield Cell(name), *_described(info), Cell(size, "dim", right=True)


def _described(info: TensorInfo) -> tuple[Cell, Cell]:
    shape = "x".join(map(str, info.shape)) or "scalar"
    return Cell(shape, right=True), Cell(info.encoding.name, "cyan")


def _kinds(header: Header) -> Callable[[TensorInfo], tuple[object, int]]:
    extents = header.extents
    return lambda info: ((info.shape, info.encoding.name), extents[info.name].nbytes)


def _row(line: Line[TensorInfo], header: Header) -> Sequence[Cell]:
    times = f"  x{line.times}" if line.times > 1 else ""
    label = f"{'  ' * line.depth}{line.label}{times}"
    size = Cell(format_size(line.nbytes), "dim", right=True)
    if line.entry is not None:
        return (Cell(label), *_described(line.entry), size)
    if line.name is not None:
        tied = f"{label} = {header.aliases[line.name]}"
        return (Cell(tied), Cell(""), Cell("tied", "cyan"), Cell(""))
    count = counted(line.tensors, line.times)
    return (Cell(label, "bold"), Cell(count, "dim", right=True), Cell(""), size)


def _summary(path: str, weights: Weights) -> list[list[Cell]]:
    header = weights.header
    name, architecture = _identity(weights)
    title = [Cell(printable(name or os.path.basename(path.rstrip("/"))), "bold")]
    title.append(Cell(": " + ", ".join(filter(None, [printable(architecture), header.format]))))
    if len(header.files) > 1:
        title.append(Cell(f", {len(header.files)} files"))
    lines = [title, [Cell(_totals(header))]]
    if len(parts := _by_encoding(header)) > 1:
        total = sum(parts.values()) or 1
        shares = (
            f"{encoding} {format_size(nbytes)} ({100 * nbytes / total:.1f} %)"
            for encoding, nbytes in parts.items()
        )
        lines.append([Cell(", ".join(shares))])
    return lines


def _totals(header: Header) -> str:
    parameters = sum(info.size for info in header.tensors.values())
    nbytes = sum(_by_encoding(header).values())
    bits = f", {8 * nbytes / parameters:.2f} bits per weight" if parameters else ""
    count = len(header.tensors)
    return (
        f"{count} tensor{'s' if count != 1 else ''}, {format_count(parameters)} parameters, "
        f"{format_size(nbytes)}{bits}"
    )


def _by_encoding(header: Header) -> dict[str, int]:
    nbytes: Counter[str] = Counter()
    for name, info in header.tensors.items():
        nbytes[info.encoding.name] += header.extents[name].nbytes
    return dict(nbytes.most_common())


def _identity(weights: Weights) -> tuple[str, str]:
    """Return what the model calls itself, and its architecture; empty where nothing says so."""
    beside = config(weights.header.files)
    says = {key: value.content for key, value in weights.metadata.items()}
    name = says.get("general.name") or beside.get("_name_or_path")
    architecture = says.get("general.architecture") or beside.get("model_type")
    return (
        name if isinstance(name, str) else "",
        architecture if isinstance(architecture, str) else "",
    )


def _document(path: str, weights: Weights) -> dict[str, Any]:
    header = weights.header
    name, architecture = _identity(weights)
    return {
        "path": path,
        "format": header.format,
        "name": name or None,
        "architecture": architecture or None,
        "files": list(header.files),
        "alignment": header.alignment,
        "notes": list(header.notes),
        "totals": {
            "tensors": len(header.tensors),
            "parameters": sum(info.size for info in header.tensors.values()),
            "bytes": sum(extent.nbytes for extent in header.extents.values()),
            "bytes_by_encoding": _by_encoding(header),
        },
        "tensors": [
            {
                "name": info.name,
                "shape": list(info.shape),
                "encoding": info.encoding.name,
                "bytes": header.extents[info.name].nbytes,
                "file": header.files[header.extents[info.name].file],
                "offset": header.extents[info.name].offset,
            }
            for info in header.tensors.values()
        ],
        "tied": dict(header.aliases),
    }
