"""Carries out an edit of files in a store, which copies their data itself where it can."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import OutputError
from weightctl.storage.files import list_names
from weightctl.storage.location import has_commits
from weightctl.storage.traffic import TRAFFIC
from weightctl.system.threads import thread_count
from weightctl.write.conversion_tasks import DEFAULT_MEMORY, ConversionWork
from weightctl.write.outcome import Outcome
from weightctl.write.output import write_output
from weightctl.write.targets import Target, refuse_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.editing.planning import EditPlan


def refuse_store(url: str) -> None:
    """Raise `OutputError` if the files at a URL cannot be edited."""
    if has_commits(url):
        raise OutputError(
            f"{url}: files on the Hugging Face Hub cannot be edited in place",
            hint="`weightctl convert` writes an edited copy into a repository",
        )
    refuse_place(url)


def upload_files(plan: EditPlan, progress: Callable[[int], object] | None) -> tuple[int, int]:
    """Replace objects by edited ones; return the bytes that were sent, and those the store copied.

    Raises `OutputError` if the store cannot be written.
    """
    changed = [(each.path, each.layout) for each in plan.changed_files if each.layout is not None]
    if not changed:
        return 0, 0
    where = changed[0][0]
    directory = os.path.dirname(where)
    names = {info.name for _, layout in changed for info in layout.tensors}
    items = tuple(item for item in plan.model.plan.items if item.info.name in names)
    written = replace(plan.model.plan, items=items)
    layouts = {os.path.basename(path): layout for path, layout in changed}
    index = None if plan.index is None else (os.path.basename(plan.index[0]), plan.index[1])
    # Other objects there are not replaced.
    beside = {os.path.join(directory, name): "" for name in list_names(directory)}
    outcome = Outcome(Target(where, plan.format), layouts, index, {}, {}, (), beside)
    threads = thread_count(None)
    work = ConversionWork(
        written, list(layouts.values()), threads=threads, memory=DEFAULT_MEMORY
    )  # fmt: skip
    before = TRAFFIC.counts
    write_output(written, outcome, work, force=True, threads=threads, progress=progress)
    sent = TRAFFIC.counts.since(before).bytes_sent
    return sent, max(outcome.nbytes - sent, 0)
