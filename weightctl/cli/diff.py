"""`weightctl diff`: the differences of two checkpoints."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from weightctl.cli import options
from weightctl.cli.costs import show_document
from weightctl.cli.outline import outline
from weightctl.cli.progress import LONG, long_bar, stages_bar
from weightctl.cli.render import note, show_lines, show_notes, show_table
from weightctl.cli.stored import hash_tensors
from weightctl.errors import WeightctlError
from weightctl.inspection.contents import label, read_contents
from weightctl.inspection.diff import compare_contents, refuse_both, refuse_nothing
from weightctl.storage.files import name_model
from weightctl.text.columns import Cell, shape_text
from weightctl.text.sizes import format_size
from weightctl.text.wording import number, percent, pluralize, printable, say_more
from weightctl.weights.nodes import build_tree
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from weightctl.cli.outline import OutlineLine
    from weightctl.deltas.creating import WrittenPatch
    from weightctl.inspection.comparison import Comparison, Difference, LayerChange, ValueChange
    from weightctl.inspection.diff import ComparedCheckpoints

# The bytes of B, by the way in which the patch restores them.
_MEANINGS = {
    "same": "unchanged",
    "sparse": "list of changed words",
    "difference": "differences of all words",
    "new": "new, compressed",
    "stored": "new, not compressible",
}
_CONTENT = {"bytes", "values"}
# At most this number of keys of the metadata are shown.
_MOST_KEYS = 24

app = typer.Typer(add_completion=False)


@app.command()
def diff(
    *,
    first: options.Path,
    second: options.Path,
    include: options.TensorNames = None,
    exclude: options.TensorNames = None,
    hashes: Annotated[bool, typer.Option("--hash")] = False,
    values: Annotated[bool, typer.Option("--values")] = False,
    patch: options.OutputFile = None,
    force: options.Force = False,
    anonymous: options.Anonymous = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare the tensors of two checkpoints: names, shapes and types; with --values, values.

    The formats may differ. Tensors are paired by name. If one checkpoint has Hugging Face names and
    the other has GGUF names, the names are translated before pairing. This requires a supported
    model family. Metadata and config.json are compared if both have the same format.
    """
    del anonymous  # its callback has taken effect
    refuse_both(hashes=hashes, values=values)
    if patch is not None and (hashes or values or include or exclude):
        raise WeightctlError(
            "--patch always compares all bytes of all tensors and other files, so it cannot be "
            "used together with --hash, --values, --include or --exclude",
            hint="remove the other options",
        )
    ours, theirs = (read_contents(path, include or (), exclude or ()) for path in (first, second))
    refuse_nothing(ours, theirs, is_part=bool(include or exclude))
    for contents in (ours, theirs):
        show_notes(header_of(contents.weights).notes, quiet=quiet)
    written = None
    if patch is not None:
        written = save_patch(first, second, patch, force=force, quiet=quiet)
        if not as_json:
            if not quiet:
                summarize_patch(written)
            return
    is_short = max(ours.totals.nbytes, theirs.totals.nbytes) < LONG or not (hashes or values)
    with stages_bar(quiet=quiet or is_short) as progress:
        compared = compare_contents(
            (first, ours),
            (second, theirs),
            hashed=partial(hash_tensors, quiet=quiet) if hashes else None,
            values=values,
            is_part=bool(include or exclude),
            progress=progress,
        )
    found = compared.comparison
    if as_json:
        show_document(replace(compared, patch=written))
    elif not quiet:
        sides = (("A", first, ours), ("B", second, theirs))
        titles = [f"{side}: {name_model(path)} ({c.title(path)})" for side, path, c in sides]
        show_lines([[Cell(printable(title), "bold")] for title in titles])
        _show_differences(found)
        _show_metadata(compared)
        show_lines([[Cell(line)] for line in _summarize(found, hashes=hashes)])
    if not quiet and ours.entries and theirs.entries and not found.shared:
        note(
            "A and B have no tensor name in common; different naming conventions are paired only "
            "if the model family is supported and config.json is present"
        )
    if (found.differences or compared.metadata) and written is None:
        raise typer.Exit(1)


def _show_differences(found: Comparison) -> None:
    if found.how:
        show_lines([[Cell(f"tensors are paired {found.how}", "dim")]])
    stored = {name: each for name, each in found.differences.items() if each.change is None}
    changed = {name: each for name, each in found.differences.items() if each.change is not None}
    layers = found.layers or ()
    has_layers = changed and any(each.layer is not None for each in layers)
    tables = (
        _rows(stored) if stored else (),
        change_rows(changed) if changed else (),
        layer_rows([each for each in layers if each.changed]) if has_layers else (),
    )
    for table in filter(None, tables):
        show_lines([[]])
        show_table(table)
    if found.differences:
        show_lines([[]])


def _show_metadata(compared: ComparedCheckpoints) -> None:
    differences = compared.metadata
    if not differences:
        return
    blank: list[list[Cell]] = [] if compared.differences else [[]]
    show_lines([*blank, [Cell("metadata", "bold")]])
    rows: list[list[Cell]] = []
    for each in differences[:_MOST_KEYS]:
        sign, style = ("-", "red") if each.second is None else ("+", "green")
        if each.first is not None and each.second is not None:
            sign, style = "~", "yellow"
        change = _arrow(filter(None, (each.first, each.second)))
        rows.append([Cell(f"{sign} {each.key}", style), Cell(change)])
    show_table(rows)
    left = len(differences) - len(rows)
    show_lines([*([[Cell(f"  {say_more(left)}; --json lists all")]] if left > 0 else []), []])


def _rows(differences: dict[str, Difference]) -> Iterator[Sequence[Cell]]:
    # Names are not part of the key, so that equal layers fold although these differ.
    def look(found: Difference) -> tuple[object, int, int]:
        return (found.first, found.second, found.of), 1, 0

    for line in outline(build_tree(differences), differences, look):
        yield _row(line)


def _row(line: OutlineLine[Difference]) -> Sequence[Cell]:
    found = line.entry
    if found is None:
        return Cell(f"  {line.text}", "bold"), line.below
    sign, style = ("-", "red") if found.second is None else ("+", "green")
    if found.first is not None and found.second is not None:
        sign, style = "~", "yellow"
    sides = [side for side in (found.first, found.second) if side is not None]
    return (
        Cell(f"{sign} {line.text}", style),
        Cell(_arrow(shape_text(side.shape) for side in sides), right=True),
        Cell(
            _arrow(label(side[1:]) for side in sides),
            "cyan",
            short=_arrow(side.encoding for side in sides),
        ),
        Cell(next((f"{each} differ" for each in found.of if each in _CONTENT), ""), "yellow"),
    )


def _arrow(texts: Iterable[str]) -> str:
    return " -> ".join(dict.fromkeys(texts))


def _summarize(found: Comparison, *, hashes: bool) -> list[str]:
    total = pluralize(found.names, "tensor")
    differences = found.differences.values()
    alike = summarize_changes(found.layers or (), found.recoded)
    is_whole = hashes or found.layers is not None
    hint = "" if is_whole else "--hash and --values compare bytes and values"
    if not differences and not alike:
        return ["; ".join(filter(None, (f"{total}, no difference", hint)))]
    counts = {
        "only in A": sum(each.second is None for each in differences),
        "only in B": sum(each.first is None for each in differences),
        **{f"in {what}": sum(what in each.of for each in differences)
           for what in ("shape", "encoding", "bytes", "values")},
    }  # fmt: skip
    parts = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    verb = "differs" if len(differences) == 1 else "differ"
    summary = f"{len(differences):,} of {total} {verb}: {parts}" if differences else ""
    return [*filter(None, (hint, summary, alike))]


# Patches, as `weightctl diff --patch` writes and describes them.


def save_patch(first: str, second: str, path: str, *, force: bool, quiet: bool) -> WrittenPatch:
    """Write a patch with a progress bar; raises the errors of `write_patch`."""
    # These imports load NumPy and zstd.
    from weightctl.deltas.creating import count_patched_bytes, write_patch

    total = count_patched_bytes(second)
    with long_bar(total, "comparing", quiet=quiet) as advance:
        return write_patch(first, second, path, force=force, progress=advance)


def summarize_patch(written: WrittenPatch) -> None:
    """Print the sizes of a patch, and how much of B is restored in which way."""
    share = 100 * written.bytes / max(written.restored_bytes, 1)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in written.tensors.items() if count)
    show_table(
        [Cell(_MEANINGS[method]), Cell(format_size(nbytes), right=True)]
        for method, nbytes in written.methods.items()
        if nbytes
    )
    files = pluralize(written.files, "file")
    size = f"{format_size(written.bytes)}, {share:.2f} % of {format_size(written.restored_bytes)}"
    lines = [f"tensors: {counts}"] if counts else []
    show_lines([[], *([Cell(line)] for line in lines), [Cell(f"{written.path}: {size}, {files}")]])


# Shows changes of values (`diff --values`) on the screen and in JSON.


def change_rows(differences: Mapping[str, Difference]) -> Iterator[Sequence[Cell]]:
    """Yield a heading and a row for each tensor whose values differ, in the given order."""
    yield _heading(Cell("tensor"), Cell("type"))
    for name, each in differences.items():
        if each.change is None or each.first is None or each.second is None:
            continue
        types = _arrow((each.first.encoding, each.second.encoding))
        yield [Cell(f"~ {name}", "yellow"), Cell(types, "cyan"), *_figures(each.change)]


def layer_rows(layers: Iterable[LayerChange]) -> Iterator[Sequence[Cell]]:
    """Yield a heading and a row for each layer, with the change of all its tensors together."""
    yield _heading(Cell("layer"), Cell("tensors that differ", right=True, short="differ"))
    for each in layers:
        yield [
            Cell("other" if each.layer is None else str(each.layer)),
            Cell(f"{each.changed} of {each.tensors}", right=True),
            *_figures(each.change),
        ]


def _heading(*first: Cell) -> list[Cell]:
    """Return a heading: the given cells, and the titles of the figures of a change."""
    figures = (
        Cell("relative RMSE", right=True, short="rel. RMSE"),
        Cell("largest difference", right=True, short="largest"),
    )
    return [*(cell._replace(style="bold") for cell in (*first, *figures)), Cell("")]


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
