"""`weightctl ls`: what is in a checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from weightctl.cli.options import (
    Exclude,
    From,
    Include,
    Json,
    MetaCommand,
    Paths,
    Quiet,
    Sort,
    examples,
)
from weightctl.cli.render import Cell, complain, note, show_lines, show_table, show_text, warn
from weightctl.errors import OutputError, WeightctlError
from weightctl.formats.open.opening import open_weights
from weightctl.text.wording import printable
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.cli.contents import Contents
    from weightctl.weights.tree import Checkpoint

__all__ = ["app"]

app = typer.Typer(add_completion=False)


class _Asked(NamedTuple):
    """The options, as they were given; `meta` is empty where no key was."""

    depth: int | None
    flat: bool
    details: bool
    hashes: bool
    sort: Sort | None
    include: Sequence[str]
    exclude: Sequence[str]
    meta: str | None
    as_json: bool
    quiet: bool
    several: bool
    scan: bool

    @property
    def is_flat(self) -> bool:
        return self.flat or self.details or self.hashes or self.sort is not None


@app.command(
    cls=MetaCommand,
    epilog=examples(
        [
            "weightctl ls fixtures/tiny-llama",
            "weightctl ls fixtures/tiny-llama --depth 2",
            "weightctl ls fixtures/tiny-llama --flat | grep norm",
            "weightctl ls fixtures/tiny-llama -l --sort size --include '*proj*'",
            "weightctl ls fixtures/tiny-llama --hash",
            "weightctl ls fixtures/tiny-llama --meta",
            "weightctl ls fixtures/tiny-llama --meta format",
            "weightctl ls fixtures/training.pt --scan",
            "weightctl ls fixtures/training.pt --scan -v --allow 'mylib.*'",
            "weightctl ls fixtures/tiny-llama --json",
        ]
    ),
)
def ls(
    *,
    paths: Paths,
    depth: Annotated[
        int | None, typer.Option("--depth", min=1, help="Show this many levels of the tree.")
    ] = None,
    flat: Annotated[
        bool, typer.Option("--flat", help="Show each stored tensor on a line.")
    ] = False,
    details: Annotated[
        bool, typer.Option("--long", "-l", help="Show offset, alignment and file as well.")
    ] = False,
    include: Include = None,
    exclude: Exclude = None,
    sort: Annotated[
        Sort | None, typer.Option(help="Order the lines by this; the largest comes first.")
    ] = None,
    hashes: Annotated[
        bool, typer.Option("--hash", help="Show the SHA-256 of each tensor's bytes as well.")
    ] = False,
    meta: Annotated[
        str | None,
        typer.Option(metavar="[KEY]", help="Show the metadata, or the value of one key whole."),
    ] = None,
    scan: Annotated[
        bool,
        typer.Option(
            "--scan",
            help="List the globals in pickles that can run code or are unknown; exit 1 if any.",
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="With --scan, list the known globals as well.")
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="With --scan, count such globals as known; a dangerous one needs its full name.",
        ),
    ] = None,
    allow_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="With --scan, read patterns to allow: one on a line, # comments."
        ),
    ] = None,
    sarif: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="With --scan, write the findings as SARIF 2.1.0."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace the file that --sarif names.")
    ] = False,
    as_json: Json = False,
    source: From = None,
    quiet: Quiet = False,
) -> None:
    """Show what is in checkpoints: their tensors, shapes, encodings and sizes.

    Layers that are alike are shown once. Only headers are read, so size does not matter.
    """
    if not scan and (verbose or force or allow or allow_file is not None or sarif is not None):
        raise WeightctlError(
            "-v, --allow, --allow-file, --sarif and --force are options of --scan",
            hint="add --scan, or leave them out",
        )
    asked = _Asked(
        depth, flat, details, hashes, sort, include or (), exclude or (), meta, as_json, quiet,
        len(paths) > 1, scan,
    )  # fmt: skip
    _refuse_contradictions(asked)
    if scan:
        from weightctl.cli.scanned import ScanChoices, scan_paths

        choices = ScanChoices(as_json, quiet, verbose, allow or (), allow_file, sarif, force)
        raise typer.Exit(scan_paths(paths, choices))
    shown = 0
    for path in paths:
        try:
            weights = open_weights(path, source, partial=True)
            if shown and not as_json and not meta:
                show_lines([[]])
            _show(path, weights, asked)
            shown += 1
        except OutputError:
            raise
        except (WeightctlError, OSError) as error:
            if not asked.several:
                raise
            complain(error)
    if shown < len(paths):
        raise typer.Exit(2)


def _refuse_contradictions(asked: _Asked) -> None:
    others = (asked.is_flat, asked.depth, asked.meta is not None, asked.include, asked.exclude)
    if asked.scan and any(others):
        raise WeightctlError(
            "--scan reads pickles, and no tensors",
            hint="with it go only --json, -q, -v, --allow, --allow-file and --sarif",
        )
    if asked.depth is not None and asked.is_flat:
        raise WeightctlError(
            "--depth is of the tree, and --flat, -l, --sort and --hash list each tensor",
            hint="leave one of them out",
        )
    if asked.meta is not None and asked.is_flat and (asked.meta or not asked.as_json):
        raise WeightctlError(
            "--meta shows no tensors", hint="leave out --flat, -l, --sort and --hash"
        )


def _show(path: str, weights: Checkpoint, asked: _Asked) -> None:
    if asked.meta:
        _show_value(path, weights, asked)
        return
    from weightctl.cli.contents import Contents

    contents = Contents(weights, asked.include, asked.exclude)
    for text in weights.header.warnings:
        warn(text)
    if not asked.quiet:
        for text in header_of(weights).notes:
            note(text)
        if contents.count and not (contents.entries or contents.tensors or contents.leaves):
            note(f"{path}: none of the {contents.count} tensors has such a name")
    if asked.as_json:
        _show_json(path, contents, asked)
    elif asked.meta is not None:
        _show_metadata(path, contents, asked)
    elif asked.is_flat:
        _show_flat(path, contents, asked)
    else:
        _show_tree(path, contents, asked)


def _show_value(path: str, weights: Checkpoint, asked: _Asked) -> None:
    from weightctl.cli.metadata import find, show_value

    value = find(header_of(weights).metadata, asked.meta or "", path)
    if asked.as_json:
        from weightctl.cli.document import value_document

        show_text(json.dumps(value_document(value)) + "\n")
    else:
        show_value(value)


def _show_metadata(path: str, contents: Contents, asked: _Asked) -> None:
    from weightctl.cli.metadata import show_metadata
    from weightctl.cli.overview import summary

    metadata = header_of(contents.weights).metadata
    if not asked.quiet:
        show_lines([*summary(path, contents), *([[]] if metadata else [])])
        if not metadata:
            note(f"{path}: the header has no metadata")
    show_metadata(metadata)


def _show_json(path: str, contents: Contents, asked: _Asked) -> None:
    from weightctl.cli.document import document
    from weightctl.cli.listing import hash_tensors, sort_names

    made = document(
        path,
        contents,
        [*contents.tensors] if asked.sort is None else sort_names(contents, asked.sort),
        digests=hash_tensors(contents, quiet=asked.quiet) if asked.hashes else None,
        whole_metadata=asked.meta is not None,
    )
    show_text(json.dumps(made) + "\n")


def _show_flat(path: str, contents: Contents, asked: _Asked) -> None:
    from weightctl.cli.listing import equals, hash_tensors, rows, sort_names

    names = sort_names(contents, asked.sort)
    digests = hash_tensors(contents, quiet=asked.quiet) if asked.hashes else None
    equal = equals(contents, names, digests or {})
    if asked.several and not asked.quiet:
        show_lines([[Cell(printable(f"{path}:"), "bold")]])
    heading = asked.details and not asked.quiet
    show_table(
        rows(contents, names, details=asked.details, heading=heading, digests=digests, equal=equal)
    )
    if equal and not asked.quiet:
        count = f"{len(equal)} tensor{' holds' if len(equal) == 1 else 's hold'}"
        note(f"{count} the bytes of another (=)")


def _show_tree(path: str, contents: Contents, asked: _Asked) -> None:
    from weightctl.cli.overview import summary, tree_rows

    if not asked.quiet:
        show_lines(
            [*summary(path, contents), *([[]] if contents.entries or contents.leaves else [])]
        )
    show_table(tree_rows(contents, asked.depth))
