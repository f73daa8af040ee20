"""`weightctl imatrix`: measures an importance matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weightctl.cli import options
from weightctl.cli.costs import show_document
from weightctl.cli.progress import stages_bar
from weightctl.cli.render import show_lines, show_notes
from weightctl.text.columns import Cell
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from weightctl.calibrate import MeasuredImportance

app = typer.Typer(add_completion=False)


@app.command()
def imatrix(
    *,
    path: Annotated[str | None, options.MODEL] = None,
    out: Annotated[str, typer.Option("--out", "-o", callback=options.locate_local)],
    text_file: options.InputFiles = None,
    chunks: options.AtLeastOne = None,
    context: Annotated[int, typer.Option(min=16)] = 512,
    merge: options.InputFiles = None,
    process_output: Annotated[bool, typer.Option("--process-output")] = False,
    hessian: Annotated[bool, typer.Option("--hessian")] = False,
    device: options.Device = "cpu",
    force: options.Force = False,
    anonymous: options.Anonymous = False,
    as_json: options.Json = False,
    source_format: options.From = None,
    quiet: options.Quiet = False,
) -> None:
    """Measure an importance matrix for `convert --imatrix`, as llama-imatrix does.

    The model runs on a text, one layer at a time, and the squares of what each column of each
    matrix is multiplied with are summed. The weights of one operation are in memory at a time, so
    the model can be larger than memory. If the run is stopped, the same command continues it after
    the last complete layer. Without --text-file, the model runs on a text that is part of
    weightctl: prose in several languages, code, and conversations.
    """
    del anonymous  # its callback has taken effect
    from weightctl.calibrate import make_imatrix

    with stages_bar(quiet=quiet) as advance:
        made = make_imatrix(
            path,
            out,
            text_files=text_file or (),
            chunks=chunks,
            context=context,
            merge=merge or (),
            process_output=process_output,
            hessian=hessian,
            device=options.device_named(device),
            force=force,
            source_format=source_format,
            progress=advance,
        )
    show_notes(made.notes, quiet=quiet)
    if as_json:
        show_document(made)
    elif not quiet:
        show_lines([[Cell(_summarize(made))]])


def _summarize(made: MeasuredImportance) -> str:
    what = f"{made.path}: {pluralize(made.tensors, 'tensor')}"
    if made.hessians:
        what += f", {made.hessians} with products of columns"
    if made.chunks:
        what += f", measured on {pluralize(made.chunks, 'chunk')} of {made.context:,} tokens"
    return what + (f", merged with {pluralize(len(made.merged), 'file')}" if made.merged else "")
