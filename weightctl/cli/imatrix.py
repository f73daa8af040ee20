"""`weightctl imatrix`: measures an importance matrix."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from weightctl.cli.completion import complete_devices
from weightctl.cli.costs import document_network
from weightctl.cli.options import (
    Anonymous,
    Force,
    From,
    Json,
    Quiet,
    examples,
    exit_codes,
    locate,
    locate_local,
)
from weightctl.cli.progress import stages_bar
from weightctl.cli.render import Cell, note, show_lines, show_text
from weightctl.cli.run_on import device_named
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from weightctl.calibrate import MeasuredImportance

app = typer.Typer(add_completion=False)


@app.command(
    epilog="\n\n".join(
        [
            exit_codes("the importance matrix was written"),
            examples(
                [
                    "weightctl imatrix model/ -o imatrix.gguf --chunks 8",
                    "weightctl imatrix model/ -o notes.gguf --text-file notes.txt --chunks 4",
                    "weightctl imatrix -o both.gguf --merge imatrix.gguf --merge notes.gguf",
                ]
            ),
        ]
    )
)
def imatrix(
    *,
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="The model to run: a GGUF file with a tokenizer, or a directory with "
            "tokenizer.json. It can be left out with --merge.",
            show_default=False,
            callback=locate,
        ),
    ] = None,
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write the importance matrix to FILE: in GGUF, or with the suffix .dat in "
            "llama.cpp's older format.",
            callback=locate_local,
        ),
    ],
    text_file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Run the model on the text in FILE instead of the built-in text. Repeatable.",
            callback=locate,
        ),
    ] = None,
    chunks: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Use at most N chunks. [default: the whole text]"),
    ] = None,
    context: Annotated[
        int,
        typer.Option(metavar="N", min=16, help="Cut the text into chunks of N tokens."),
    ] = 512,
    merge: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Add the sums of the importance matrix in FILE. Repeatable.",
            callback=locate,
        ),
    ] = None,
    process_output: Annotated[
        bool,
        typer.Option(
            "--process-output",
            help="Measure output.weight too. llama.cpp's recipes do not need it.",
        ),
    ] = False,
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE",
            help="Run on cpu, cuda, or another GPU such as cuda:1.",
            autocompletion=complete_devices,
        ),
    ] = "cpu",
    force: Force = False,
    anonymous: Anonymous = False,
    as_json: Json = False,
    source: From = None,
    quiet: Quiet = False,
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
            device=device_named(device),
            force=force,
            format_name=source,
            advance=advance,
        )
    notes = [*made.notes, *_describe_seldom(made)]
    if not quiet:
        for text in notes:
            note(text)
    if as_json:
        document = asdict(made) | {"model": path, "notes": notes}
        show_text(json.dumps(document | document_network()) + "\n")
    elif not quiet:
        show_lines([[Cell(_summarize(made))]])


def _summarize(made: MeasuredImportance) -> str:
    what = f"{made.path}: {pluralize(made.tensors, 'tensor')}"
    if made.chunks:
        what += f", measured on {pluralize(made.chunks, 'chunk')} of {made.context:,} tokens"
    return what + (f", merged with {pluralize(len(made.merged), 'file')}" if made.merged else "")


def _describe_seldom(made: MeasuredImportance) -> list[str]:
    """Return a note about the experts that few tokens reached."""
    if not made.seldom:
        return []
    worst = max(made.seldom, key=lambda each: (each.unreached, each.seldom))
    unreached = max(0, *(each.unreached for each in made.seldom))
    what = (
        f"no token reached {worst.unreached} of the {worst.experts} experts of `{worst.tensor}`"
        if unreached
        else f"few tokens reached {worst.seldom} of the {worst.experts} experts of `{worst.tensor}`"
    )
    more = len(made.seldom) - 1
    others = f", and {more} more tensors have such experts" if more else ""
    return [f"{what}{others}: use a longer text"]
