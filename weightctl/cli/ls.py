"""`weightctl ls`: list the tensors of checkpoints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from weightctl.cli import options
from weightctl.cli.fitted import ListContext, ListFit, ListKvType, find_fit
from weightctl.cli.render import Cell, complain, note, show_lines, show_table, show_text, warn
from weightctl.errors import OutputError, WeightctlError
from weightctl.formats.open.opening import open_weights
from weightctl.storage.traffic import TRAFFIC
from weightctl.text.wording import pluralize, printable
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.cli.contents import Contents
    from weightctl.cli.fitted import FitResult
    from weightctl.storage.traffic import TrafficCounts
    from weightctl.weights.tree import Checkpoint

app = typer.Typer(add_completion=False)


_JSON = "--json"


class ListCommand(options.MetaCommand):
    """A command that passes on whether `--json` is given to options that do not need a MODEL."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments, and store in the context whether `--json` is one of them."""
        options = args[: args.index("--")] if "--" in args else args
        ctx.meta[_JSON] = _JSON in options
        return super().parse_args(ctx, args)


def _print_families(context: typer.Context, wanted: bool) -> None:
    if not wanted:
        return
    # Both functions import the modules of all families.
    if context.meta[_JSON]:
        from weightctl.cli.families import families_document

        show_text(json.dumps(families_document()) + "\n")
    else:
        from weightctl.cli.families import show_families

        show_families()
    raise typer.Exit


@app.command(cls=ListCommand)
def ls(
    *,
    paths: options.Paths,
    depth: options.AtLeastOne = None,
    flat: Annotated[bool, typer.Option("--flat")] = False,
    details: Annotated[bool, typer.Option("--long", "-l")] = False,
    include: options.TensorNames = None,
    exclude: options.TensorNames = None,
    sort: options.Sort | None = None,
    hashes: Annotated[bool, typer.Option("--hash")] = False,
    meta: str | None = None,
    values: Annotated[bool, typer.Option("--values")] = False,
    scan: Annotated[bool, typer.Option("--scan")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v")] = False,
    allow: list[str] | None = None,
    allow_file: options.InputFile = None,
    sarif: options.OutputFile = None,
    force: options.Force = False,
    fit: ListFit = None,
    context: ListContext = None,
    kv_type: ListKvType = None,
    anonymous: options.Anonymous = False,
    families: Annotated[
        bool, typer.Option("--families", callback=_print_families, is_eager=True)
    ] = False,
    draft: Annotated[bool, typer.Option("--draft-family")] = False,
    as_json: options.Json = False,
    source_format: options.From = None,
    quiet: options.Quiet = False,
) -> None:
    """List the contents of checkpoints: tensors, shapes, types and sizes.

    Layers with the same tensor names, shapes and types are shown as one entry. Without --hash and
    --scan, only headers are read, so the time does not depend on the file size.
    """
    del anonymous, families  # their callbacks have taken effect
    if not scan and (verbose or force or allow or allow_file is not None or sarif is not None):
        raise WeightctlError(
            "-v, --allow, --allow-file, --sarif and --force can only be used with --scan",
            hint="add --scan, or leave out these options",
        )
    asked = ListChoices(
        depth, flat, details, hashes, sort, include or (), exclude or (), meta, as_json, quiet,
        len(paths) > 1, scan, values, fit, context, kv_type, draft,
    )  # fmt: skip
    asked.check()
    if scan:
        from weightctl.cli.scanned import ScanChoices, scan_paths

        choices = ScanChoices(as_json, quiet, verbose, allow or (), allow_file, sarif, force)
        raise typer.Exit(scan_paths(paths, choices))
    shown, fits = 0, True
    for path in paths:
        try:
            before = TRAFFIC.counts
            weights = open_weights(path, source_format, partial=True)
            if shown and not as_json and not meta:
                show_lines([[]])
            fits &= _show(path, weights, asked, before)
            shown += 1
        except OutputError:
            raise
        except (WeightctlError, OSError) as error:
            if not asked.several:
                raise
            complain(error)
    if shown < len(paths):
        raise typer.Exit(2)
    if not fits:
        raise typer.Exit(1)


def _show(path: str, weights: Checkpoint, asked: ListChoices, before: TrafficCounts) -> bool:
    """Show a checkpoint; return False if it does not fit into the memory of --fit."""
    if asked.meta or asked.draft:
        _show_text(path, weights, asked)
        return True
    from weightctl.cli.contents import Contents

    fit = find_fit(weights, asked.fit, asked.context, asked.kv_type)

    contents = Contents(weights, asked.include, asked.exclude)
    for text in weights.header.warnings:
        warn(text)
    if not asked.quiet:
        for text in header_of(weights).notes:
            note(text)
        if contents.count and not (contents.entries or contents.tensors or contents.leaves):
            note(f"{path}: none of the {contents.count} tensors matches --include and --exclude")
    if asked.as_json:
        _show_json(path, contents, asked, before, fit)
    elif fit is not None:
        _show_fit(path, contents, asked, fit)
    elif asked.meta is not None:
        _show_metadata(path, contents, asked)
    elif asked.is_flat:
        _show_flat(path, contents, asked)
    else:
        _show_tree(path, contents, asked)
    return fit is None or fit.fits


def _show_fit(path: str, contents: Contents, asked: ListChoices, fit: FitResult) -> None:
    from weightctl.cli.overview import summary

    if not asked.quiet:
        show_lines([*summary(path, contents), []])
    show_lines(fit.list_lines())
    show_table(fit.list_rows())


def _show_text(path: str, weights: Checkpoint, asked: ListChoices) -> None:
    if asked.draft:
        from weightctl.families.drafts import draft_family

        show_text(draft_family(weights))
        return
    from weightctl.cli.metadata import find, show_value

    value = find(header_of(weights).metadata, asked.meta or "", path)
    if asked.as_json:
        from weightctl.cli.document import value_document

        show_text(json.dumps(value_document(value)) + "\n")
    else:
        show_value(value)


def _show_metadata(path: str, contents: Contents, asked: ListChoices) -> None:
    from weightctl.cli.metadata import show_metadata
    from weightctl.cli.overview import summary

    metadata = header_of(contents.weights).metadata
    if not asked.quiet:
        show_lines([*summary(path, contents), *([[]] if metadata else [])])
        if not metadata:
            note(f"{path}: the header has no metadata")
    show_metadata(metadata)


def _show_json(
    path: str, contents: Contents, asked: ListChoices, before: TrafficCounts, fit: FitResult | None
) -> None:
    from weightctl.cli.costs import document_network
    from weightctl.cli.document import document
    from weightctl.cli.listing import hash_tensors, sort_names

    made = document(
        path,
        contents,
        [*contents.tensors] if asked.sort is None else sort_names(contents, asked.sort),
        digests=hash_tensors(contents, quiet=asked.quiet) if asked.hashes else None,
        whole_metadata=asked.meta is not None,
    )
    if fit is not None:
        made["fit"] = fit.document
    show_text(json.dumps(made | document_network(before)) + "\n")


def _show_flat(path: str, contents: Contents, asked: ListChoices) -> None:
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
        verb = "has" if len(equal) == 1 else "have"
        note(f"{pluralize(len(equal), 'tensor')} {verb} the same bytes as another (=)")


def _show_tree(path: str, contents: Contents, asked: ListChoices) -> None:
    from weightctl.cli.overview import FoldedValues, list_shown, summary, tree_rows

    shown = list_shown(contents, with_values=asked.values)
    if not asked.quiet:
        show_lines([*summary(path, contents), *([[]] if shown else [])])
    show_table(tree_rows(contents, shown, asked.depth))
    folded = sum(each.values for each in shown.values() if isinstance(each, FoldedValues))
    if folded and not asked.quiet:
        note(f"{pluralize(folded, 'value')} folded; --values lists them")


class ListChoices(NamedTuple):
    """The options of a run; `meta` is empty if --meta has no key, and None without --meta."""

    depth: int | None
    flat: bool
    details: bool
    hashes: bool
    sort: options.Sort | None
    include: Sequence[str]
    exclude: Sequence[str]
    meta: str | None
    as_json: bool
    quiet: bool
    several: bool
    scan: bool
    values: bool
    fit: str | None
    context: int | None
    kv_type: str | None
    draft: bool

    @property
    def is_flat(self) -> bool:
        """Whether tensors are listed one by one."""
        return self.flat or self.details or self.hashes or self.sort is not None

    def check(self) -> None:
        """Raise `WeightctlError` if options contradict each other."""
        others = (
            self.is_flat, self.depth, self.meta is not None, self.include, self.exclude,
            self.values, self.fit is not None,
        )  # fmt: skip
        if self.scan and any(others):
            raise WeightctlError(
                "--scan lists the globals of pickles, not tensors: it cannot be combined with "
                "--depth, --flat, -l, --sort, --hash, --meta, --values, --fit, --include or "
                "--exclude",
                hint="leave out --scan, or the other options",
            )
        if self.draft and (self.scan or self.several or self.as_json or any(others)):
            raise WeightctlError(
                "--draft-family prints one file, and cannot be combined with other options or "
                "several models",
                hint="leave out the other options, and name one model",
            )
        if self.depth is not None and self.is_flat:
            raise WeightctlError(
                "--depth cannot be combined with --flat, -l, --sort or --hash: they show a list, "
                "not a tree",
                hint="leave out --depth, or the other options",
            )
        if self.values and (self.is_flat or self.meta is not None):
            raise WeightctlError(
                "--values cannot be combined with --flat, -l, --sort, --hash or --meta: they show "
                "a list, not a tree",
                hint="leave out --values, or the other options",
            )
        if self.fit is None and (self.context is not None or self.kv_type is not None):
            raise WeightctlError(
                "--context and --kv-type can only be used with --fit",
                hint="add --fit SIZE, or leave out these options",
            )
        if self.fit is not None and any(others[:-1]):
            raise WeightctlError(
                "--fit is for the whole model and lists no tensors: it cannot be combined with "
                "--depth, --flat, -l, --sort, --hash, --meta, --values, --include or --exclude",
                hint="leave out --fit, or the other options",
            )
        if self.meta is not None and self.is_flat and (self.meta or not self.as_json):
            raise WeightctlError(
                "--meta shows metadata, but --flat, -l, --sort and --hash list tensors",
                hint="leave out --flat, -l, --sort and --hash",
            )
