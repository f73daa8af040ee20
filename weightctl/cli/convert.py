"""`weightctl convert`: another format, dtype or encoding, other metadata, other files."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from weightctl.cli.options import (
    DryRun,
    Exclude,
    Force,
    From,
    Include,
    Json,
    NonFinite,
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
    notes,
    overflow_notes,
    plan_kind,
    plan_row,
    summary,
    write_report,
)
from weightctl.cli.types import default_type, parse_rule
from weightctl.errors import ConversionError, OutputError
from weightctl.execute import DEFAULT_MEMORY
from weightctl.formats.importance import read_importance
from weightctl.outcome import describe
from weightctl.shards.digests import refuse_altered
from weightctl.sizes import parse_size
from weightctl.store import open_weights, save
from weightctl.targets import STDOUT, target
from weightctl.transforms.align import align
from weightctl.transforms.cast import cast
from weightctl.transforms.metadata import Setting, change_metadata
from weightctl.transforms.recipes import Recipe
from weightctl.transforms.rename import read_renamings, rename
from weightctl.transforms.split import split
from weightctl.transforms.weigh import weigh
from weightctl.translation.plans import Names, plan_of
from weightctl.weights.nodes import planted
from weightctl.weights.tree import source_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.cli.render import Cell
    from weightctl.dtype import Encoding
    from weightctl.plan import Plan
    from weightctl.targets import Target

__all__ = ["app"]

_LEAST_MEMORY = 4_000_000
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
    renamings: Annotated[
        str | None,
        typer.Option(
            "--rename",
            metavar="FILE",
            help="Rename the input's tensors first, by a TOML file of REGEX = NAME.",
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
            help="Set metadata; KEY:u32=5 states a type, else it keeps its own.",
            rich_help_panel=_CONTENT,
        ),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Remove metadata.", rich_help_panel=_CONTENT),
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
    where = target(out, to)
    stored = open_weights(path, source)
    plan = plan_of(
        stored if renamings is None else rename(stored, read_renamings(renamings)),
        where.format,
        names=names,
        is_model=where.file_name is not None,
        is_cast=bool(dtype or quant or tensor_types),
        include=include or (),
        exclude=exclude or (),
    )
    changed = [Setting.parse(each) for each in settings or ()]
    # What is said of the model decides on types, and what types say of themselves gives way.
    plan = change_metadata(plan, changed, unset or ())
    chosen = default_type(dtype, quant)
    _refuse_guides([where.path, report], imatrix, chosen, renamings)
    importance = None if imatrix is None else read_importance(imatrix)
    plan = cast(
        plan,
        chosen,
        [parse_rule(each) for each in tensor_types or ()],
        fallback=not no_fallback,
        requantize=allow_requantize,
        weighted=importance is not None,
    )
    if importance is not None:
        plan = weigh(plan, importance)
    plan = replace(plan, zero_nonfinite=nonfinite is NonFinite.ZERO)
    plan = change_metadata(plan, changed)
    plan, told = _laid_out(plan, alignment, max_shard_size)
    budget = _budget(memory)
    if report is not None:
        check_report(report, plan, where, force=force)
    for text in () if quiet else (*notes(plan, where), *told):
        note(text)
    if dry_run:
        outcome, saved = describe(plan, where), None
    else:
        _require_stdout(where, as_json=as_json)
        total = sum(item.info.nbytes for item in plan.items)
        refuse_altered(source_of(stored), threads=threads)
        with progress_bar(total, quiet=quiet) as advance:
            saved = save(plan, where, force=force, threads=threads, memory=budget, progress=advance)
        outcome = saved.outcome
    made = document(path, plan, where, outcome, saved=saved)
    if report is not None:
        write_report(report, made, force=force)
    if as_json:
        show_text(json.dumps(made) + "\n")
    elif not quiet:
        lines = summary(path, plan, where, outcome, saved=saved)
        _tell(lines, plan, where, is_plan=dry_run)
    if dry_run:
        # Of a plan that cannot be carried out, all is shown, and then why it cannot.
        outcome.refuse(force=force)
    # Numbers that were lost are told of whatever else was asked to be quiet.
    for text in (*overflow_notes(saved), *nonfinite_notes(saved)):
        note(text)


def _refuse_guides(
    targets: Iterable[str | None],
    imatrix: str | None,
    chosen: Encoding | Recipe | None,
    renamings: str | None,
) -> None:
    """Refuse a target that is one of the files beside the input which say how to convert it."""
    recipe = chosen.path if isinstance(chosen, Recipe) else None
    guides = (
        (imatrix, "the importance matrix"),
        (recipe, "the recipe"),
        (renamings, "the rules of names"),
    )
    for guide, what in guides:
        for path in filter(os.path.exists, filter(None, targets)):
            if guide and os.path.exists(guide) and os.path.samefile(path, guide):
                raise OutputError(f"{path} is {what}", hint="choose another name")


def _laid_out(plan: Plan, alignment: str | None, most: str | None) -> tuple[Plan, list[str]]:
    """Align and split as it was asked; return what should be told of it too."""
    if alignment is not None:
        plan = align(plan, parse_size(alignment, unit="B"))
    if most is None:
        return plan, []
    limit = parse_size(most)
    if limit == 0:
        raise ConversionError(f"--max-shard-size {most} holds nothing", hint="write it like 5GB")
    plan = split(plan, limit)
    layouts = plan.layouts()
    larger = sum(layout.nbytes > limit for layout in layouts)
    told = f"{larger} of {len(layouts)} files are larger than {most}: no tensor is split"
    return plan, [told] if larger else []


def _tell(lines: list[list[Cell]], plan: Plan, where: Target, *, is_plan: bool) -> None:
    """Show a summary, below the plan where it is one; on stderr where stdout takes the output."""
    if is_plan:
        entries = {item.info.name: item for item in plan.items}
        tree = planted([*entries, *plan.tied])
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
            "a checkpoint is no text for a terminal", hint="redirect stdout, or name a file"
        )
    if as_json:
        raise ConversionError(
            "stdout takes the output itself", hint="--report FILE keeps what --json shows"
        )


def _budget(text: str) -> int:
    budget = parse_size(text)
    if budget < _LEAST_MEMORY:
        raise ConversionError(
            f"--mem {text} is too little to work in",
            hint="4MB is the least",
        )
    return budget
