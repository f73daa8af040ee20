"""`weightctl diff`: the differences of two checkpoints."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightctl.cli import options
from weightctl.cli.compared import Comparison, Difference, Side, compare
from weightctl.cli.contents import Contents, hash_tensors, label
from weightctl.cli.costs import show_document
from weightctl.cli.outline import outline
from weightctl.cli.progress import LONG, long_bar, stages_bar
from weightctl.cli.render import (
    Cell,
    note,
    shape_text,
    show_lines,
    show_notes,
    show_table,
)
from weightctl.errors import WeightctlError
from weightctl.families.mlx import is_mlx
from weightctl.formats.open.opening import open_weights
from weightctl.text.sizes import format_size
from weightctl.text.wording import number, percent, pluralize, printable
from weightctl.weights.nodes import build_tree
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from weightctl.cli.compared import LayerChange, ValueChange
    from weightctl.cli.outline import OutlineLine
    from weightctl.deltas.creating import WrittenPatch

# The bytes of B, by the way in which the patch restores them.
_MEANINGS = {
    "same": "unchanged",
    "sparse": "list of changed words",
    "difference": "differences of all words",
    "new": "new, compressed",
    "stored": "new, not compressible",
}
_CONTENT = {"bytes", "values"}

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
    """Compare the tensors of two checkpoints: names, shapes and types.

    The formats may differ. Tensors are paired by name. If one checkpoint has Hugging Face names and
    the other has GGUF names, the names are translated before pairing. This requires a supported
    model family. Metadata is not compared.
    """
    del anonymous  # its callback has taken effect
    _refuse_combinations(
        hashes=hashes, values=values, is_part=bool(include or exclude), has_patch=patch is not None
    )
    ours, theirs = (_open(path, include or (), exclude or ()) for path in (first, second))
    if (include or exclude) and not ours.entries and not theirs.entries:
        raise WeightctlError(
            "no tensor of A or B matches --include and --exclude",
            hint="`weightctl ls --flat` lists the names; `*` matches any text",
        )
    for contents in (ours, theirs):
        show_notes(header_of(contents.weights).notes, quiet=quiet)
    written = None
    if patch is not None:
        written = save_patch(first, second, patch, force=force, quiet=quiet)
        if not as_json:
            if not quiet:
                summarize_patch(written)
            return
    found = _compare(ours, theirs, (first, second), hashes=hashes, values=values, quiet=quiet)
    if as_json:
        compared = "values" if values else "bytes" if hashes else ""
        made = _document((first, ours), (second, theirs), found, compared)
        show_document(made | {"patch": None if written is None else patch_document(written)})
    elif not quiet:
        titles = (f"A: {first} ({ours.title(first)})", f"B: {second} ({theirs.title(second)})")
        show_lines([[Cell(printable(title), "bold")] for title in titles])
        _show_differences(found)
        show_lines([[Cell(line)] for line in _summarize(found, hashes=hashes)])
    if not quiet and ours.entries and theirs.entries and not found.shared:
        note(
            "A and B have no tensor name in common; different naming conventions are paired only "
            "if the model family is supported and config.json is present"
        )
    if found.differences and written is None:
        raise typer.Exit(1)


def _refuse_combinations(*, hashes: bool, values: bool, is_part: bool, has_patch: bool) -> None:
    """Raise `WeightctlError` for options that cannot be used together."""
    if hashes and values:
        raise WeightctlError(
            "--hash compares bytes and --values compares values, so they cannot be used together",
            hint="use --values if the encodings differ, and --hash otherwise",
        )
    if has_patch and (hashes or values or is_part):
        raise WeightctlError(
            "--patch always compares all bytes of all tensors and other files, so it cannot be "
            "used together with --hash, --values, --include or --exclude",
            hint="remove the other options",
        )


def _open(path: str, include: Sequence[str], exclude: Sequence[str]) -> Contents:
    return Contents(open_weights(path), include, exclude)


def _compare(
    ours: Contents,
    theirs: Contents,
    paths: tuple[str, str],
    *,
    hashes: bool,
    values: bool,
    quiet: bool,
) -> Comparison:
    """Compare two checkpoints, paired by equal names, or by the names of their family.

    Pairing by a family's names is needed to compare values, or if most names differ.
    """
    if values or _has_other_names(ours, theirs):
        # This import loads NumPy.
        from weightctl.cli.paired import PairedTensors, compare_bytes, compare_values

        try:
            paired = PairedTensors(ours, theirs, paths)
        except WeightctlError:
            # Shapes and encodings can be compared even if weights cannot be decoded.
            if values:
                raise
            paired = None
        if paired is not None and (values or paired.is_by_family):
            total = max(ours.totals.nbytes, theirs.totals.nbytes)
            is_short = total < LONG or not (hashes or values)
            with stages_bar(quiet=quiet or is_short) as progress:
                if values:
                    return compare_values(paired, progress)
                return compare_bytes(paired, progress, with_bytes=hashes)
    return compare(
        ours,
        theirs,
        (lambda contents, names: hash_tensors(contents, names, quiet=quiet)) if hashes else None,
    )


def _has_other_names(ours: Contents, theirs: Contents) -> bool:
    """Whether less than half of the smaller checkpoint's names are also in the other one.

    MLX gives other names only to some tensors.
    """
    headers = [header_of(contents.weights) for contents in (ours, theirs)]
    if is_mlx(headers[0]) != is_mlx(headers[1]):
        return True
    first, second = ({*header.tensors, *header.aliases} for header in headers)
    return 2 * len(first & second) < min(len(first), len(second))


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


def _rows(differences: dict[str, Difference]) -> Iterator[Sequence[Cell]]:
    # The second name is not part of the key, so that equal layers fold although it differs.
    def look(found: Difference) -> tuple[object, int, int]:
        return found[:3], 1, 0

    for line in outline(build_tree(differences), differences, look):
        yield _row(line)


def _row(line: OutlineLine[Difference]) -> Sequence[Cell]:
    found = line.entry
    if found is None:
        return Cell(f"  {line.text}", "bold"), line.below
    sign, style = ("-", "red") if found.second is None else ("+", "green")
    if found.first is not None and found.second is not None:
        sign, style = "~", "yellow"
    sides = [side for side in found[:2] if side is not None]
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
    if not differences and not alike:
        is_whole = hashes or found.layers is not None
        hint = "" if is_whole else "; --hash and --values compare bytes and values"
        return [f"{total}, no difference{hint}"]
    counts = {
        "only in A": sum(each.second is None for each in differences),
        "only in B": sum(each.first is None for each in differences),
        **{f"in {what}": sum(what in each.of for each in differences)
           for what in ("shape", "encoding", "bytes", "values")},
    }  # fmt: skip
    parts = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    verb = "differs" if len(differences) == 1 else "differ"
    summary = f"{len(differences):,} of {total} {verb}: {parts}" if differences else ""
    return [*filter(None, (summary, alike))]


def _document(
    first: tuple[str, Contents], second: tuple[str, Contents], found: Comparison, compared: str
) -> dict[str, Any]:
    layers = found.layers
    return {
        "first": _checkpoint(*first),
        "second": _checkpoint(*second),
        "compared": ["shape", *(["values"] if compared == "values" else ["encoding"]),
                     *(["bytes"] if compared == "bytes" else [])],
        "paired": found.how or "by equal names",
        "tensors": found.names,
        "differences": [
            {
                "name": name,
                "second_name": each.second_name,
                "of": list(each.of),
                "first": _side_document(each.first),
                "second": _side_document(each.second),
                "change": change_document(each.change),
            }
            for name, each in found.differences.items()
        ],
        "layers": None
        if layers is None
        else [each._asdict() | {"change": change_document(each.change)} for each in layers],
    }  # fmt: skip


def _checkpoint(path: str, contents: Contents) -> dict[str, Any]:
    name, architecture = contents.identity
    return {
        "path": path,
        "format": header_of(contents.weights).format,
        "name": name or None,
        "architecture": architecture or None,
    }


def _side_document(side: Side | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {
        "shape": list(side.shape),
        "encoding": side.encoding,
        "bits_per_weight": side.bits,
    }


# Patches, as `weightctl diff --patch` writes and describes them.


def save_patch(first: str, second: str, path: str, *, force: bool, quiet: bool) -> WrittenPatch:
    """Write a patch with a progress bar; raises the errors of `write_patch`."""
    # These imports load NumPy and zstd.
    from weightctl.deltas.creating import count_patched_bytes, write_patch

    total = count_patched_bytes(second)
    with long_bar(total, quiet=quiet) as advance:
        return write_patch(first, second, path, force=force, progress=advance)


def summarize_patch(written: WrittenPatch) -> None:
    """Print the sizes of a patch, and how much of B is restored in which way."""
    share = 100 * written.nbytes / max(written.restored, 1)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in written.tensors.items() if count)
    show_table(
        [Cell(_MEANINGS[method]), Cell(format_size(nbytes), right=True)]
        for method, nbytes in written.methods.items()
        if nbytes
    )
    files = pluralize(written.files, "file")
    size = f"{format_size(written.nbytes)}, {share:.2f} % of {format_size(written.restored)}"
    lines = [f"tensors: {counts}"] if counts else []
    show_lines([[], *([Cell(line)] for line in lines), [Cell(f"{written.path}: {size}, {files}")]])


def patch_document(written: WrittenPatch) -> dict[str, Any]:
    """Return the description of a patch as JSON."""
    return {
        "path": written.path,
        "bytes": written.nbytes,
        "restored_bytes": written.restored,
        "files": written.files,
        "tensors": dict(written.tensors),
        "methods": dict(written.methods),
    }


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


def change_document(change: ValueChange | None) -> dict[str, Any] | None:
    """Return a change as a JSON object; figures that are not finite are null."""
    if change is None:
        return None
    return {key: value if isfinite(value) else None for key, value in change._asdict().items()}
