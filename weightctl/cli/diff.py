"""`weightctl diff`: in what two checkpoints differ."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightctl.cli.compared import Comparison, Difference, Side, compare
from weightctl.cli.contents import Contents, label
from weightctl.cli.listing import hash_tensors
from weightctl.cli.options import Exclude, Include, Json, Quiet, examples, exit_codes
from weightctl.cli.outline import format_tensor_count, outline
from weightctl.cli.render import Cell, note, shape_text, show_lines, show_table, show_text
from weightctl.errors import WeightctlError
from weightctl.formats.open.opening import open_weights
from weightctl.text.wording import printable
from weightctl.weights.nodes import build_tree
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from weightctl.cli.outline import OutlineLine

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command(
    epilog="\n\n".join(
        [
            exit_codes("no differences", "differences"),
            examples(
                [
                    "weightctl diff model/ model/model.safetensors",
                    "weightctl diff model/ copy/ --hash",
                    "weightctl diff -q --hash model/ copy/ && echo same",
                ]
            ),
        ]
    )
)
def diff(
    *,
    first: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="The first checkpoint, of any format; A in the output."
        ),
    ],
    second: Annotated[
        str,
        typer.Argument(
            metavar="OTHER", help="The second checkpoint, of any format; B in the output."
        ),
    ],
    include: Include = None,
    exclude: Exclude = None,
    hashes: Annotated[
        bool, typer.Option("--hash", help="Also compare the bytes of tensors.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare the tensors of two checkpoints: names, shapes and types.

    Tensors are paired by name. The formats may differ. Metadata is not compared.
    """
    ours = Contents(open_weights(first), include or (), exclude or ())
    theirs = Contents(open_weights(second), include or (), exclude or ())
    if (include or exclude) and not ours.entries and not theirs.entries:
        raise WeightctlError(
            "no tensor of either has such a name",
            hint="`weightctl ls --flat` lists the names; `*` stands for anything",
        )
    if not quiet:
        for contents in (ours, theirs):
            for text in header_of(contents.weights).notes:
                note(text)
    found = compare(
        ours,
        theirs,
        (lambda contents, names: hash_tensors(contents, names, quiet=quiet)) if hashes else None,
    )
    if as_json:
        show_text(json.dumps(_document((first, ours), (second, theirs), found, hashes)) + "\n")
    elif not quiet:
        titles = [
            f"{path} ({side.title(path)})" for path, side in ((first, ours), (second, theirs))
        ]
        show_lines([[Cell(printable(" -> ".join(titles)), "bold")]])
        if found.differences:
            show_lines([[]])
            show_table(_rows(found.differences))
            show_lines([[]])
        show_lines([[Cell(_summary(found, hashes=hashes))]])
    if not quiet and ours.entries and theirs.entries and not found.shared:
        note(
            "not one name is in both, and tensors are compared by name; Hugging Face, GGUF and "
            "other libraries each have names of their own"
        )
    if found.differences:
        raise typer.Exit(1)


def _rows(differences: dict[str, Difference]) -> Iterator[Sequence[Cell]]:
    for line in outline(build_tree(differences), differences, lambda found: (found, 1, 0)):
        yield _row(line)


def _row(line: OutlineLine[Difference]) -> Sequence[Cell]:
    times = f"  x{line.times}" if line.times > 1 else ""
    text = f"{'  ' * line.depth}{line.label}{times}"
    found = line.entry
    if found is None:
        count = format_tensor_count(line.tensors, line.times)
        return Cell(f"  {text}", "bold"), Cell(count, "dim", right=True)
    sign, style = ("-", "red") if found.second is None else ("+", "green")
    if found.first is not None and found.second is not None:
        sign, style = "~", "yellow"
    sides = [side for side in found[:2] if side is not None]
    return (
        Cell(f"{sign} {text}", style),
        Cell(_arrow(shape_text(side.shape) for side in sides), right=True),
        Cell(
            _arrow(label(side[1:]) for side in sides),
            "cyan",
            short=_arrow(side.encoding for side in sides),
        ),
        Cell("other bytes" if "bytes" in found.of else "", "yellow"),
    )


def _arrow(texts: Iterable[str]) -> str:
    return " -> ".join(dict.fromkeys(texts))


def _summary(found: Comparison, *, hashes: bool) -> str:
    total = f"{found.names} tensor{'' if found.names == 1 else 's'}"
    differences = found.differences.values()
    if not differences:
        return f"{total}, no difference{'' if hashes else '; --hash compares bytes too'}"
    counts = {
        "only in A": sum(each.second is None for each in differences),
        "only in B": sum(each.first is None for each in differences),
        **{f"in {what}": sum(what in each.of for each in differences)
           for what in ("shape", "encoding", "bytes")},
    }  # fmt: skip
    parts = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    verb = "differs" if len(differences) == 1 else "differ"
    return f"{len(differences)} of {total} {verb}: {parts}"


def _document(
    first: tuple[str, Contents], second: tuple[str, Contents], found: Comparison, hashes: bool
) -> dict[str, Any]:
    return {
        "first": _checkpoint(*first),
        "second": _checkpoint(*second),
        "compared": ["shape", "encoding", *(["bytes"] if hashes else [])],
        "tensors": found.names,
        "differences": [
            {
                "name": name,
                "of": list(each.of),
                "first": _side_document(each.first),
                "second": _side_document(each.second),
            }
            for name, each in found.differences.items()
        ],
    }


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
