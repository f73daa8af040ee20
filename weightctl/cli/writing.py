"""Writing of a planned conversion: progress, the summary, the report and notes."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from weightctl.cli.budgets import list_found, write_recipe
from weightctl.cli.losses import nonfinite_notes, overflow_notes
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
from weightctl.errors import ConversionError, OutputError
from weightctl.weights.nodes import build_tree
from weightctl.write.targets import STDOUT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.budget.found import FoundTypes
    from weightctl.cli.render import Cell
    from weightctl.plan.plan import Plan
    from weightctl.write.conversion import Conversion
    from weightctl.write.targets import Target


def write_output(
    path: str, conversion: Conversion, found: FoundTypes | None, given: Mapping[str, Any]
) -> None:
    """Write a conversion of the checkpoint at `path`, or show its plan, and what was done.

    `found` is the result of a search for a budget. `given` maps names of parameters of the command
    `convert` to values.
    """
    force, dry_run, quiet, on = (given[name] for name in ("force", "dry_run", "quiet", "on"))
    report, as_json = given["report"], given["as_json"]
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
                threads=given["threads"],
                memory=given["memory"],
                progress=advance,
                on=on,
                task_size=given["task_size"],
            )
    if found is not None:
        write_recipe(given["recipe_out"], found, force=force)
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
        from weightctl.cli.outline import outline

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
