"""Plans and writes conversions by the options of `convert`, `merge` and `tasks`."""

from __future__ import annotations

import json
import sys
from inspect import signature
from typing import TYPE_CHECKING, Any

from weightctl.cli import options
from weightctl.cli.progress import progress_bar
from weightctl.cli.render import is_terminal, show_notes, show_sentences, show_table, show_text
from weightctl.cli.report import (
    check_report,
    count_stored_bytes,
    document_outputs,
    nonfinite_notes,
    note_when_stopped,
    overflow_notes,
    plan_kind,
    plan_row,
    planned_resumption,
    summary,
    write_content,
    write_report,
)
from weightctl.errors import ConversionError, OutputError
from weightctl.plan.metadata import Setting
from weightctl.plan.type_rules import TypeRule
from weightctl.text.columns import Cell
from weightctl.text.documents import to_document
from weightctl.weights.nodes import build_tree
from weightctl.write.convert import convert as convert_checkpoint
from weightctl.write.targets import STDOUT, check_new_file, is_stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.budget.found import FoundTypes
    from weightctl.plan.plan import Plan
    from weightctl.write.conversion import Conversion
    from weightctl.write.targets import Target

# The arguments of `weightctl.convert` that a plan does not need, and those that a search replaces.
_OF_WRITING = {"source", "out", "force", "threads", "progress", "on", "task_size"}
_OF_TYPES = {"dtype", "quant"}


def plan_conversion(given: Mapping[str, Any]) -> tuple[Conversion, FoundTypes | None]:
    """Plan a conversion; `given` maps names of parameters of the command `convert` to values.

    Options with the name of an argument of `weightctl.convert` are passed on if they are given. The
    result includes what a search for a budget has found; None if there is no budget.
    """
    wanted = signature(convert_checkpoint).parameters.keys() - _OF_WRITING - _OF_TYPES
    is_given = (name for name in wanted & given.keys() if given[name] not in (None, []))
    arguments: dict[str, Any] = {name: given[name] for name in is_given} | {
        "tensor_types": [TypeRule.parse(each) for each in given["tensor_types"] or ()],
        "metadata": [Setting.parse(each) for each in given["metadata"] or ()],
        "fallback": not given.get("no_fallback"),
        "feedback": not given.get("no_feedback"),
        "dry_run": True,
    }
    if not _has_budget(given):
        return convert_checkpoint(
            given["path"], given["out"], dtype=given["dtype"], quant=given["quant"], **arguments
        ), None
    return _plan_to_budget(given, arguments)


# The options that set a budget, those that apply only to budgets, and those that exclude them.
_LIMITS = ("bpw", "size", "max_kld", "fit")
_FURTHER = ("context", "kv_type", "types", "same_type", "text_file", "calibration_file",
            "recipe_out")  # fmt: skip
_OTHER_TYPES = ("quant", "dtype", "exact", "search")
BUDGET_OPTIONS = (*_LIMITS, *_FURTHER)


def _has_budget(given: Mapping[str, Any]) -> bool:
    """Whether an option sets a budget.

    Raises `ConversionError` for options that do not go together.
    """
    limits = [name for name in _LIMITS if given.get(name) is not None]
    if not limits:
        for name in _FURTHER:
            if given.get(name) is not None:
                raise ConversionError(
                    f"{_option(name)} applies only to a budget",
                    hint=f"add one of {', '.join(map(_option, _LIMITS))}, or leave it out",
                )
        return False
    if len(limits) > 1:
        raise ConversionError(
            f"{' and '.join(map(_option, limits))} are both given", hint="choose one"
        )
    for name in _OTHER_TYPES:
        if given[name]:
            raise ConversionError(
                f"{_option(limits[0])} and {_option(name)} are both given",
                hint="leave one out; to give some tensors a certain type, use --tensor-type",
            )
    return True


def _option(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


def _plan_to_budget(
    given: Mapping[str, Any], arguments: Mapping[str, Any]
) -> tuple[Conversion, FoundTypes]:
    """Find the types for a budget, and plan the conversion with them."""
    for name in ("recipe_out", "report"):
        if given[name] is not None and not is_stream(given[name]):
            check_new_file(given[name], _option(name), [given["path"]], force=given["force"])
    from weightctl.budget.search import QuantizationBudget, quantize

    types = given["types"]
    text, calibration = (
        None if given[name] is None else options.text_of(given[name])
        for name in ("text_file", "calibration_file")
    )
    budget = QuantizationBudget(
        bits=given["bpw"],
        size=given["size"],
        divergence=given["max_kld"],
        memory=given["fit"],
        context=given["context"],
        kv_type=given["kv_type"],
        types=None if types is None else list(filter(None, map(str.strip, types.split(",")))),
        same_type=given["same_type"],
        text=text,
        calibration=calibration,
    )
    return quantize(given["path"], given["out"], budget, force=given["force"], **arguments)


def write_output(
    path: str, conversion: Conversion, found: FoundTypes | None, given: Mapping[str, Any]
) -> Conversion:
    """Write a conversion of the checkpoint at `path`, or show its plan, and return what was done.

    `found` is the result of a search for a budget. `given` maps names of parameters of the command
    `convert` to values.
    """
    force, dry_run, quiet, on = (given[name] for name in ("force", "dry_run", "quiet", "on"))
    report, as_json = given["report"], given["as_json"]
    plan, where = conversion.plan, conversion.target
    if report is not None:
        check_report(report, plan, where, force=force, on=on)
    texts = [text for each in conversion.outputs for text in each.notes]
    show_notes([*texts, *(found.notes if found else ())], quiet=quiet)
    if not dry_run:
        _require_stdout(where, as_json=as_json)
        total = sum(item.info.nbytes for each in conversion.outputs for item in each.plan.items)
        read = sum(count_stored_bytes(each.plan) for each in conversion.outputs)
        with (
            note_when_stopped(where),
            progress_bar(
                total, "converting", quiet=quiet, input_bytes=read, has_workers=on is not None
            ) as advance,
        ):
            conversion = conversion.save(
                force=force,
                threads=given["threads"],
                memory=given["memory"],
                progress=advance,
                on=on,
                task_size=given["task_size"],
            )
    if found is not None and given["recipe_out"] is not None:
        write_content(given["recipe_out"], found.toml.encode(), force=force)
    made = document_outputs(path, conversion)
    if found is not None:
        made["budget"] = to_document(found)
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
    for saved in (each.saved for each in conversion.outputs):
        show_notes([*overflow_notes(saved), *nonfinite_notes(saved)], quiet=False)
    return conversion


def _show_summaries(
    path: str, conversion: Conversion, found: FoundTypes | None, *, is_plan: bool
) -> None:
    """Show a summary of each output; stderr is used if the first one is written to stdout."""
    for each in conversion.outputs:
        lines = summary(path, each.plan, each.target, each.outcome, saved=each.saved)
        if is_plan:
            lines += planned_resumption(each.kept_bytes)
        if found is not None and each is conversion:
            lines += _list_found(found)
        _show_summary(lines, each.plan, conversion.target, is_plan=is_plan)


def _list_found(found: FoundTypes) -> Iterator[list[Cell]]:
    """Yield the lines for the result of a search: the bits per weight and the certificate."""
    from weightctl.budget.found import describe_certificate

    yield [Cell(f"{found.limit}: {found.bits_per_weight:.3f} bits per weight")]
    yield from ([Cell(line)] for line in describe_certificate(found.certificate))


def _show_summary(lines: list[list[Cell]], plan: Plan, where: Target, *, is_plan: bool) -> None:
    """Show a summary; for a dry run, below the plan.

    If the output is written to stdout, the summary goes to stderr.
    """
    if is_plan:
        entries = {item.info.name: item for item in plan.items}
        tree = build_tree([*entries, *plan.tied])
        from weightctl.cli.outline import outline

        show_table(plan_row(line) for line in outline(tree, entries, plan_kind))
        show_sentences([[], *lines])
    elif where.path != STDOUT:
        show_sentences(lines)
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
