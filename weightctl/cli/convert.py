"""`weightctl convert`: another format, dtype or encoding, other metadata, other files."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from weightctl.cli.options import (
    DryRun,
    Exclude,
    Force,
    From,
    Include,
    Json,
    Path,
    Quiet,
    Threads,
    To,
    examples,
)
from weightctl.cli.outline import outline
from weightctl.cli.progress import progress_bar
from weightctl.cli.render import is_terminal, note, show_lines, show_table, show_text
from weightctl.cli.report import (
    check_report,
    document,
    nonfinite_notes,
    note_when_stopped,
    overflow_notes,
    plan_kind,
    plan_row,
    planned_resumption,
    summary,
    write_report,
)
from weightctl.errors import ConversionError, OutputError
from weightctl.plan.cast import TypeRule
from weightctl.plan.metadata import Setting
from weightctl.translate.plans import Names
from weightctl.weights.nodes import build_tree
from weightctl.write.advice import notes_on
from weightctl.write.conversion_tasks import DEFAULT_MEMORY
from weightctl.write.convert import NonFinite
from weightctl.write.convert import convert as plan_conversion
from weightctl.write.targets import STDOUT

if TYPE_CHECKING:
    from weightctl.cli.render import Cell
    from weightctl.plan.plan import Plan
    from weightctl.write.targets import Target

__all__ = ["app"]

_TYPES = "Types"
_CONTENT = "Content"
_FILES = "Files"

app = typer.Typer(add_completion=False)


@app.command(
    epilog=examples(
        [
            "weightctl convert fixtures/tiny-llama tiny.gguf",
            "weightctl convert fixtures/tiny-llama tiny-q4.gguf --quant Q4_K_M",
            "weightctl convert tiny-q4.gguf tiny-bf16 --dtype bf16",
            "weightctl convert fixtures/tiny-llama mine.gguf --quant fixtures/recipe.toml -n",
            "weightctl convert fixtures/tiny-llama mix.gguf --tensor-type attn_v=Q8_0",
            "weightctl convert fixtures/tiny-llama tiny-f16 --dtype f16",
            "weightctl convert fixtures/tiny-llama shards --max-shard-size 1MB",
        ]
    )
)
def convert(
    *,
    path: Path,
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="Where to: its suffix is the format; without one it is a model's directory. "
            "A pipe, or - for stdout, is written front to back.",
        ),
    ],
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Store numbers as f32, f16, bf16, f64, f8_e4m3 ...",
            rich_help_panel=_TYPES,
        ),
    ] = None,
    quant: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE",
            help="Quantize matrices: by llama.cpp's recipe, such as Q4_K_M, to one type, such as "
            "Q4_K, or by a TOML file of your own.",
            rich_help_panel=_TYPES,
        ),
    ] = None,
    tensor_types: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor-type",
            metavar="REGEX=TYPE",
            help="The type where REGEX is found in the name, or keep; the first that fits wins.",
            rich_help_panel=_TYPES,
        ),
    ] = None,
    imatrix: Annotated[
        str | None,
        typer.Option(
            "--imatrix",
            metavar="FILE",
            help="llama.cpp's importance matrix: blocks hold best what matters most.",
            rich_help_panel=_TYPES,
        ),
    ] = None,
    nonfinite: Annotated[
        NonFinite,
        typer.Option(
            "--nonfinite",
            help="NaN and infinity in quantized tensors: refuse, or store 0.",
            rich_help_panel=_TYPES,
        ),
    ] = NonFinite.ERROR,
    allow_requantize: Annotated[
        bool,
        typer.Option(
            "--allow-requantize",
            help="Quantize what is quantized already.",
            rich_help_panel=_TYPES,
        ),
    ] = False,
    no_fallback: Annotated[
        bool,
        typer.Option(
            "--no-fallback",
            help="Refuse where a row does not divide into blocks.",
            rich_help_panel=_TYPES,
        ),
    ] = False,
    names: Annotated[
        Names,
        typer.Option(
            "--names",
            help="Names, config and tokenizer: the target's own for a family that is known, or "
            "those of the input, of Hugging Face, of GGUF.",
            rich_help_panel=_CONTENT,
        ),
    ] = Names.AUTO,
    weights_only: Annotated[
        bool,
        typer.Option(
            "--weights-only",
            help="Leave out what a training run stores beside the weights: optimizer state, step "
            "counts, random number generators, hyperparameters. If one entry has all the weights "
            "(Lightning's state_dict), the names begin below it.",
            rich_help_panel=_CONTENT,
        ),
    ] = False,
    renamings: Annotated[
        list[str] | None,
        typer.Option(
            "--rename",
            metavar="REGEX=NEW|FILE",
            help="Rename the input's tensors first: replace what REGEX finds, or follow the rules "
            "of a TOML file. The first that fits wins; --include and --tensor-type apply to the "
            "new names.",
            rich_help_panel=_CONTENT,
        ),
    ] = None,
    include: Include = None,
    exclude: Exclude = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set metadata; KEY:u32=5 states a type, else it keeps its own. KEY=@FILE takes "
            "the text of a file.",
            rich_help_panel=_CONTENT,
        ),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB", help="Remove metadata: a key, or '*' in one.", rich_help_panel=_CONTENT
        ),
    ] = None,
    max_shard_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Split into files of at most 5GB, say.", rich_help_panel=_FILES
        ),
    ] = None,
    alignment: Annotated[
        str | None,
        typer.Option(
            "--align",
            metavar="BYTES",
            help="Start tensors on multiples of this power of two.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    to: To = None,
    source: From = None,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="Convert the parts that exist of a checkpoint in several files, although others "
            "are missing.",
            rich_help_panel=_CONTENT,
        ),
    ] = False,
    force: Force = False,
    dry_run: DryRun = False,
    threads: Threads = None,
    memory: Annotated[
        str, typer.Option("--mem", metavar="SIZE", help="Memory to work in, such as 512MiB.")
    ] = f"{DEFAULT_MEMORY >> 20}MiB",
    report: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Keep there, as JSON, what was done and lost."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Convert a checkpoint to another format, dtype or quantization.

    A model of a known family gets the names, the config and the tokenizer of its new format; all
    else stays as it is, and so does every tensor that is not asked to change. Patterns are for the
    names that tensors have in the output.
    The output is written under a temporary name and gets its own when it is complete.
    """
    conversion = plan_conversion(
        path,
        out,
        dtype=dtype,
        quant=quant,
        tensor_types=[TypeRule.parse(each) for each in tensor_types or ()],
        imatrix=imatrix,
        nonfinite=nonfinite,
        allow_requantize=allow_requantize,
        fallback=not no_fallback,
        names=names,
        weights_only=weights_only,
        rename=renamings or None,
        include=include or (),
        exclude=exclude or (),
        metadata=[Setting.parse(each) for each in settings or ()],
        unset=unset or (),
        max_shard_size=max_shard_size,
        align=alignment,
        to=to,
        source_format=source,
        partial=partial,
        memory=memory,
        dry_run=True,
    )
    plan, where = conversion.plan, conversion.target
    if report is not None:
        check_report(report, plan, where, force=force)
    for text in () if quiet else notes_on(plan, where):
        note(text)
    if dry_run:
        outcome, saved = conversion.outcome, None
    else:
        _require_stdout(where, as_json=as_json)
        total = sum(item.info.nbytes for item in plan.items)
        with (
            note_when_stopped(where),
            progress_bar(total, quiet=quiet) as advance,
        ):
            conversion = conversion.save(
                force=force, threads=threads, memory=memory, progress=advance
            )
        outcome, saved = conversion.outcome, conversion.saved
    made = document(path, plan, where, outcome, saved=saved)
    if report is not None:
        write_report(report, made, force=force)
    if as_json:
        show_text(json.dumps(made) + "\n")
    elif not quiet:
        lines = summary(path, plan, where, outcome, saved=saved)
        if dry_run:
            lines += planned_resumption(conversion.kept_bytes)
        _show_summary(lines, plan, where, is_plan=dry_run)
    if dry_run:
        # Of a plan that cannot be carried out, all is shown, and then why it cannot.
        outcome.refuse(force=force)
    # Lost values are reported with -q too.
    for text in (*overflow_notes(saved), *nonfinite_notes(saved)):
        note(text)


def _show_summary(lines: list[list[Cell]], plan: Plan, where: Target, *, is_plan: bool) -> None:
    """Show a summary, below the plan where it is one; on stderr where stdout takes the output."""
    if is_plan:
        entries = {item.info.name: item for item in plan.items}
        tree = build_tree([*entries, *plan.tied])
        show_table(plan_row(line) for line in outline(tree, entries, plan_kind))
        show_lines([[], *lines])
    elif where.path != STDOUT:
        show_lines(lines)
    elif sys.stderr:
        sys.stderr.write("".join("".join(cell.text for cell in line) + "\n" for line in lines))


def _require_stdout(where: Target, *, as_json: bool) -> None:
    if where.path != STDOUT:
        return
    if is_terminal():
        raise OutputError(
            "a checkpoint cannot be written to a terminal", hint="redirect stdout, or name a file"
        )
    if as_json:
        raise ConversionError(
            "--json and the checkpoint cannot both go to stdout",
            hint="use --report FILE instead of --json",
        )
