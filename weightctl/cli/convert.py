"""`weightctl convert`: convert a checkpoint to another format, dtype or encoding."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from weightctl.cli.budgets import (
    Bpw,
    CalibrationFile,
    MaxKld,
    RecipeOut,
    SameType,
    Size,
    TextFile,
    Types,
    list_found,
    write_recipe,
)
from weightctl.cli.losses import nonfinite_notes, overflow_notes
from weightctl.cli.options import (
    Anonymous,
    DryRun,
    Exclude,
    Force,
    From,
    Include,
    Json,
    Memory,
    Mmproj,
    On,
    Partial,
    Path,
    Private,
    PullRequest,
    Quiet,
    Report,
    Search,
    TaskSize,
    Threads,
    To,
    Without,
    examples,
    exit_codes,
)
from weightctl.cli.outline import outline
from weightctl.cli.planned import plan_conversion
from weightctl.cli.progress import progress_bar
from weightctl.cli.render import is_terminal, note, show_lines, show_table, show_text
from weightctl.cli.report import (
    check_report,
    document_outputs,
    note_when_stopped,
    plan_kind,
    plan_row,
    planned_resumption,
    summary,
    write_report,
)
from weightctl.cli.type_options import Dtype, Imatrix, Quant, TensorTypes, describe_types
from weightctl.errors import ConversionError, OutputError
from weightctl.translate.plans import Names
from weightctl.weights.nodes import build_tree
from weightctl.write.conversion_tasks import DEFAULT_MEMORY
from weightctl.write.convert import NonFinite
from weightctl.write.executors.worker import DEFAULT_TASK
from weightctl.write.targets import STDOUT

if TYPE_CHECKING:
    from weightctl.budget.found import FoundTypes
    from weightctl.cli.render import Cell
    from weightctl.plan.plan import Plan
    from weightctl.write.conversion import Conversion
    from weightctl.write.targets import Target

__all__ = ["app"]

_TYPES = "Types"
_CONTENT = "Content"
_FILES = "Files"

app = typer.Typer(add_completion=False)


@app.command(
    epilog="\n\n".join(
        [
            *describe_types(),
            exit_codes("success"),
            examples(
                [
                    "weightctl convert model/ model.gguf",
                    "weightctl convert model/ model-q4.gguf --quant Q4_K_M",
                    "weightctl convert model-q4.gguf model-bf16/ --dtype bf16",
                    "weightctl convert model/ model-mine.gguf --quant recipe.toml -n",
                    (
                        "weightctl convert model/ model-q4-v8.gguf --quant Q4_K \\\n"
                        "    --tensor-type attn_v=Q8_0"
                    ),
                    "weightctl convert model/ model-4.5.gguf --bpw 4.5 --recipe-out found.toml",
                    "weightctl convert model/ model-w4/ --quant W4A16:group=64",
                    "weightctl convert model/ model-f16/ --dtype f16",
                    "weightctl convert model/ model-split/ --max-shard-size 1MB",
                ]
            ),
        ]
    )
)
def convert(
    *,
    path: Path,
    out: Annotated[
        str | None,
        typer.Argument(
            metavar="OUT",
            help="The path to write. Its suffix selects the format; a path without a suffix is a "
            "model directory. OUT can also be a URL, a pipe, or - for stdout.",
        ),
    ] = None,
    dtype: Dtype = None,
    quant: Quant = None,
    tensor_types: TensorTypes = None,
    imatrix: Imatrix = None,
    bpw: Bpw = None,
    size: Size = None,
    max_kld: MaxKld = None,
    types: Types = None,
    same_type: SameType = None,
    text_file: TextFile = None,
    calibration_file: CalibrationFile = None,
    recipe_out: RecipeOut = None,
    search: Search = False,
    nonfinite: Annotated[
        NonFinite,
        typer.Option(
            "--nonfinite",
            help="If a tensor to be quantized has NaN or infinity, stop with an error, or store 0.",
            rich_help_panel=_TYPES,
        ),
    ] = NonFinite.ERROR,
    allow_requantize: Annotated[
        bool,
        typer.Option(
            "--allow-requantize",
            help="Allow tensors that are already quantized to be quantized again, which loses "
            "precision.",
            rich_help_panel=_TYPES,
        ),
    ] = False,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Store every value exactly, or stop with an error. Tensors that stay unquantized "
            "are written as F32 if a smaller type would round them.",
            rich_help_panel=_TYPES,
        ),
    ] = False,
    no_fallback: Annotated[
        bool,
        typer.Option(
            "--no-fallback",
            help="Stop with an error if a row length is not a multiple of the block size, instead "
            "of using a fallback type.",
            rich_help_panel=_TYPES,
        ),
    ] = False,
    names: Annotated[
        Names,
        typer.Option(
            "--names",
            help="Naming convention of the output, for tensor names, config and tokenizer. gguf: "
            "as in GGUF files; hf: as in Hugging Face models; openai: as in OpenAI's Whisper and "
            "CLIP; keep: as in MODEL; auto: gguf if OUT is a GGUF file, openai if OUT is a file of "
            "whisper.cpp, hf if OUT is a directory, keep otherwise.",
            rich_help_panel=_CONTENT,
        ),
    ] = Names.AUTO,
    mmproj: Mmproj = None,
    weights_only: Annotated[
        bool,
        typer.Option(
            "--weights-only",
            help="Leave out training state: optimizer state, step counts, random number generator "
            "state and hyperparameters. If all weights are under one key (such as Lightning's "
            "state_dict), remove that key from their names.",
            rich_help_panel=_CONTENT,
        ),
    ] = False,
    renamings: Annotated[
        list[str] | None,
        typer.Option(
            "--rename",
            metavar="REGEX=NEW|FILE",
            help="Rename input tensors: replace each match of REGEX in a name with NEW, or apply "
            "the rules in a TOML file. The first matching rule decides. Names are replaced before "
            "--names translates them. Repeatable.",
            rich_help_panel=_CONTENT,
        ),
    ] = None,
    include: Include = None,
    exclude: Exclude = None,
    without: Without = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a metadata key. KEY:u32=5 also sets the type of the value. KEY=@FILE "
            "reads the value from a file. Repeatable.",
            rich_help_panel=_CONTENT,
        ),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Remove metadata keys that match GLOB. Repeatable.",
            rich_help_panel=_CONTENT,
        ),
    ] = None,
    max_shard_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Split the output into files of at most SIZE, such as 5GB.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    alignment: Annotated[
        str | None,
        typer.Option(
            "--align",
            metavar="BYTES",
            help="Start each tensor at a multiple of BYTES, a power of two of at least 8. In "
            "safetensors, only the data section as a whole is aligned.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    to: To = None,
    source: From = None,
    partial: Partial = False,
    private: Private = False,
    pull_request: PullRequest = False,
    force: Force = False,
    dry_run: DryRun = False,
    threads: Threads = None,
    memory: Memory = f"{DEFAULT_MEMORY >> 20}MiB",
    on: On = None,
    task_size: TaskSize = f"{DEFAULT_TASK >> 30}GiB",
    report: Report = None,
    anonymous: Anonymous = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Convert a checkpoint to another format or type, or quantize it.

    When converting between Hugging Face directories and GGUF files, weightctl translates tensor
    names, config and tokenizer. This requires a supported model family; for other families, use
    --names keep.
    --include, --exclude and --tensor-type match the tensor names of the output.

    The output is written under a temporary name, and renamed when it is complete. To resume an
    interrupted run, run the same command again.
    """
    del anonymous  # its callback has taken effect
    conversion, found = plan_conversion(dict(locals()))
    plan, where = conversion.plan, conversion.target
    if report is not None:
        check_report(report, plan, where, force=force, on=on)
    texts = [text for each in conversion.outputs for text in each.notes]
    for text in () if quiet else [*texts, *(found.notes if found else ())]:
        note(text)
    if not dry_run:
        _require_stdout(where, as_json=as_json)
        total = sum(item.info.nbytes for each in conversion.outputs for item in each.plan.items)
        with (
            note_when_stopped(where),
            progress_bar(total, quiet=quiet, has_workers=on is not None) as advance,
        ):
            conversion = conversion.save(
                force=force,
                threads=threads,
                memory=memory,
                progress=advance,
                on=on,
                task_size=task_size,
            )
    write_recipe(recipe_out, found)
    made = document_outputs(path, conversion) | ({"budget": found.document} if found else {})
    saved = conversion.saved
    if report is not None and (saved is None or saved.is_last):
        write_report(report, made, force=force)
    if as_json:
        show_text(json.dumps(made) + "\n")
    elif not quiet:
        _show_summaries(path, conversion, found, is_plan=dry_run)
    for each in conversion.outputs if dry_run else ():
        # If the plan cannot be carried out, it is shown before the error.
        each.outcome.refuse(force=force)
    # Lost values are reported even with -q.
    losses = [each.saved for each in conversion.outputs]
    for text in (
        text for each in losses for text in (*overflow_notes(each), *nonfinite_notes(each))
    ):
        note(text)


def _show_summaries(
    path: str, conversion: Conversion, found: FoundTypes | None, *, is_plan: bool
) -> None:
    """Show a summary of each output; stderr is used if the first one is written to stdout."""
    for each in conversion.outputs:
        lines = summary(path, each.plan, each.target, each.outcome, saved=each.saved)
        if is_plan:
            lines += planned_resumption(each.kept_bytes)
        lines += list_found(found if each is conversion else None)
        _show_summary(lines, each.plan, conversion.target, is_plan=is_plan)


def _show_summary(lines: list[list[Cell]], plan: Plan, where: Target, *, is_plan: bool) -> None:
    """Show a summary; for a dry run, below the plan.

    If the output is written to stdout, the summary goes to stderr.
    """
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
            "a checkpoint cannot be written to a terminal",
            hint="redirect stdout, or use the path of a file",
        )
    if as_json:
        raise ConversionError(
            "--json and the checkpoint cannot both be written to stdout",
            hint="use --report FILE instead of --json",
        )
