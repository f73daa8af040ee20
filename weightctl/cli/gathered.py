"""`weightctl shard --gather`: merge the shards of all ranks into one checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from weightctl.cli.costs import (
    document_network,
    document_times,
    document_workers,
    list_costs,
    list_workers,
)
from weightctl.cli.progress import progress_bar
from weightctl.cli.render import Cell, note, show_lines, show_text
from weightctl.cli.report import describe_other_files
from weightctl.errors import ConversionError
from weightctl.text.sizes import format_size
from weightctl.text.wording import pluralize, printable
from weightctl.write.gathering import gathering, put_together

if TYPE_CHECKING:
    from weightctl.write.gathering import Gathering
    from weightctl.write.save import Saved


def gather_into(
    path: str,
    out: str,
    to: str | None,
    *,
    force: bool,
    dry_run: bool,
    threads: int | None,
    on: str | None,
    task_size: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Gather the shards in the directory `path`, and show the result.

    Raises `ConversionError` if the output is a pipe, and the errors of `gathering` and
    `put_together`.
    """
    described = gathering(path, out, to)
    if described.outcome.where.is_stream:
        raise ConversionError(
            "--gather cannot write to a pipe or stdout",
            hint="to write to a pipe, use "
            f"`weightctl convert {path} - --to {described.plan.format}`",
        )
    for text in () if quiet else _notes(described):
        note(text)
    saved = None
    if not dry_run:
        with progress_bar(described.nbytes, quiet=quiet, has_workers=on is not None) as advance:
            saved = put_together(
                described,
                force=force,
                threads=threads,
                progress=advance,
                on=on,
                task_size=task_size,
            )
    if as_json:
        show_text(json.dumps(_document(path, out, described, saved)) + "\n")
    elif not quiet:
        show_lines(_summary(path, out, described, saved))
    if dry_run:
        # If the plan cannot be carried out, it is shown before the error.
        described.outcome.refuse(force=force)


def _notes(described: Gathering) -> list[str]:
    return [*described.plan.source.header.notes, *described.plan.notes]


def _summary(path: str, out: str, described: Gathering, saved: Saved | None) -> list[list[Cell]]:
    plan, outcome = described.plan, described.outcome
    tensors = pluralize(len(plan.items), "tensor")
    size = format_size(sum(item.info.nbytes for item in plan.items))
    ranks = pluralize(described.gathered.manifest.grid.ranks, "rank")
    lines = [
        [Cell(f"{printable(path)} -> {printable(out)} ({plan.format})", "bold")],
        [Cell(f"{tensors} from {ranks}, {size}; the file takes {format_size(outcome.nbytes)}")],
    ]
    if outcome.carried:
        lines.append([Cell(describe_other_files(outcome.carried))])
    if saved is None:
        return [*lines, [Cell("nothing was written")]]
    lines.append([Cell("all shards match the SHA-256 in the manifest")])
    return [*lines, *list_workers(saved), *list_costs(saved.nbytes)]


def _document(path: str, out: str, described: Gathering, saved: Saved | None) -> dict[str, Any]:
    """Return the result as JSON, according to `schemas/shard.json` in the package."""
    plan, outcome = described.plan, described.outcome
    return {
        "input": path,
        "output": out,
        "format": plan.format,
        "ranks": described.gathered.manifest.grid.ranks,
        "tensors": len(plan.items),
        "files": [{"name": name, "bytes": layout.nbytes} for name, layout in outcome.parts.items()],
        "bytes": outcome.nbytes,
        "written": saved is not None,
        **document_times(saved, saved.nbytes if saved else 0),
        "notes": _notes(described),
        **document_workers(saved),
        **document_network(),
    }
