"""Gathers the shards of a sharded checkpoint into one checkpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass
from errno import ENOENT
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError, FormatError
from weightctl.formats import find_format, format_by_suffix
from weightctl.formats.sharded.opening import manifest_at, open_sharded
from weightctl.plan.choices import DEFAULT_TASK
from weightctl.plan.plan import Plan
from weightctl.storage.files import exists, refresh
from weightctl.storage.location import parse_location
from weightctl.system.files import SEPARATORS
from weightctl.weights.tree import Checkpoint
from weightctl.write.conversion_tasks import ConversionWork, memory_budget
from weightctl.write.digests import count_checked_bytes, refuse_altered
from weightctl.write.executors import is_shared
from weightctl.write.executors.worker import PlannedWork, PlanRequest
from weightctl.write.outcome import describe
from weightctl.write.save import save
from weightctl.write.targets import target

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from weightctl.formats.sharded.gathered import GatheredSource
    from weightctl.write.outcome import Outcome
    from weightctl.write.save import Saved


@dataclass(frozen=True, slots=True)
class Gathering:
    """The plan of `gather`: the sharded checkpoint, the plan, and the output files.

    Workers make the plan from the `request`.
    """

    gathered: GatheredSource
    plan: Plan
    outcome: Outcome
    request: PlanRequest | None = None

    def make_work(self, *, threads: int, memory: int) -> PlannedWork:
        """Return the work, for a worker with this number of threads and bytes of memory."""
        layouts = list(self.outcome.parts.values())
        work = ConversionWork(self.plan, layouts, threads=threads, memory=memory)
        return PlannedWork(self.plan, self.outcome, work)

    @property
    def nbytes(self) -> int:
        """The bytes of tensors that are read for the check, and those that are written.

        This is the sum of all calls of `progress`.
        """
        return count_checked_bytes(self.gathered) + sum(
            item.info.nbytes for item in self.plan.items
        )


def gathering(
    path: str | os.PathLike[str], out: str | os.PathLike[str], format_name: str | None = None
) -> Gathering:
    """Plan what `gather` does, without reading tensors or writing anything.

    Raises `ConversionError` if the path does not have a sharded checkpoint, if its format is not
    the requested one, or if the output path is invalid, and `FormatError` if the sharded checkpoint
    is incomplete.
    """
    request = PlanRequest.of(gathering, dict(locals()))
    if format_name is not None:
        find_format(format_name)
    path = parse_location(os.fspath(path)).name
    refresh(path)
    listing = manifest_at(path)
    if not exists(path):
        raise FormatError(path, None, os.strerror(ENOENT), hint="check the path")
    if listing is None:
        raise ConversionError(
            f"{path} is not a sharded checkpoint: it has no manifest",
            hint="use the path of the directory that `weightctl shard` wrote",
        )
    gathered = open_sharded(listing)
    plan = Plan.copy(Checkpoint(gathered), gathered.header.format)
    named = os.fspath(out)
    suffix = format_by_suffix(named)
    asked = format_name or suffix
    if asked not in {None, plan.format}:
        if format_name and format_name != suffix:
            stem = os.path.splitext(named)[0] if suffix else named.rstrip(SEPARATORS)
            named = stem + find_format(format_name).suffix
        raise ConversionError(
            f"cannot gather the {plan.format} shards in {path} as {asked}: --gather "
            "does not change the format",
            hint=f"to write {asked}, use `weightctl convert {path} {named}`",
        )
    outcome = describe(plan, target(os.fspath(out), plan.format))
    return Gathering(gathered, plan, outcome, request)


def gather(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    threads: int | None = None,
    memory: int | None = None,
    progress: Callable[[int], object] | None = None,
    on: str | Executor | None = None,
    task_size: int | str = DEFAULT_TASK,
) -> Saved:
    """Merge the shards of a sharded checkpoint into whole tensors with the original bytes.

    All shards are checked first: if one is altered, nothing is written. `progress` is called with
    the number of bytes of each chunk that is checked, and then of each chunk that is written. `on`
    and `task_size` are those of `weightctl.convert`; the check runs in this process.

    Raises the errors of `gathering` and `save`, and `FormatError`, which names the shards, if
    shards were altered.
    """
    return put_together(
        gathering(path, out),
        force=force,
        threads=threads,
        memory=memory,
        progress=progress,
        on=on,
        task_size=task_size,
    )


def put_together(
    described: Gathering,
    *,
    force: bool = False,
    threads: int | None = None,
    memory: int | None = None,
    progress: Callable[[int], object] | None = None,
    on: str | Executor | None = None,
    task_size: int | str = DEFAULT_TASK,
) -> Saved:
    """Carry out the plan of `gathering`; arguments and errors are those of `gather`."""
    if on is None or not is_shared(on):
        described.outcome.refuse(force=force)
    refuse_altered(described.gathered, threads=threads, progress=progress)
    where = described.outcome.where
    distribution = None
    if on is not None:
        from weightctl.write.executors.distribution import plan_distribution

        distribution = plan_distribution(
            on,
            described.request,
            where,
            threads=threads,
            memory=memory_budget(memory),
            task_size=task_size,
        )
    return save(
        described.plan,
        where,
        force=force,
        threads=threads,
        memory=memory,
        progress=progress,
        distribution=distribution,
    )
