"""Shards a checkpoint from its source to the files of ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weightctl.errors import ConversionError
from weightctl.formats.huggingface import describe_left_out
from weightctl.formats.open.opening import open_weights
from weightctl.plan.arrangement import leave_room
from weightctl.sharding.plan_file import make_rules, read_rules
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid
from weightctl.system.threads import thread_count
from weightctl.text.sizes import parse_size
from weightctl.weights.from_arrays import loaded_checkpoint
from weightctl.write.claims import refuse_other_runs
from weightctl.write.conversion_tasks import DEFAULT_MEMORY
from weightctl.write.describe import describe_shards
from weightctl.write.digests import refuse_altered
from weightctl.write.executors import is_shared
from weightctl.write.executors.worker import DEFAULT_TASK, PlannedWork, PlanRequest
from weightctl.write.output import count_kept_bytes, write_output
from weightctl.write.rank_tasks import RankWork
from weightctl.write.save import Saved

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from weightctl.sharding.plan import ShardPlan
    from weightctl.sharding.planning import CutRulesLike
    from weightctl.weights.protocol import Weights
    from weightctl.write.executors.distribution import Distribution
    from weightctl.write.outcome import Outcome


def save_shards(
    plan: ShardPlan,
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
    distribution: Distribution | None = None,
) -> Saved:
    """Write the files of all ranks; afterwards, the directory is complete, or unchanged on error.

    A stopped run can be continued, as described in `save`. `threads` is the number of threads, by
    default one for each core; each uses about 2 MB. `progress` is called with the bytes that a
    stopped run had written, and then with the number of bytes of each chunk written, by one thread
    at a time; the sum of all calls is `tensor_bytes` of the outcome. If a `distribution` is given,
    its workers do the work.

    Raises the errors of `describe_shards` and `Outcome.refuse` before anything is written,
    `OutputError` if the directory cannot be written or another run is writing it, and `FormatError`
    if the source cannot be read, changes during the run, or is a sharded checkpoint with altered
    shards.
    """
    started = time.monotonic()
    count = thread_count(threads)
    outcome = describe_shards(plan, out)
    if distribution is None or not is_shared(distribution.on):
        # Processes that share the output may have begun it, or even completed it.
        refuse_other_runs(outcome.path)
        outcome.refuse(force=force)
    # If the source is sharded, altered shards must not get new digests: that would hide the change.
    refuse_altered(plan.source, threads=threads)
    work = RankWork(plan, list(outcome.parts.values()))
    written = write_output(
        plan,
        outcome,
        work,
        force=force,
        threads=count,
        progress=progress,
        distribution=distribution,
    )
    return Saved(outcome, time.monotonic() - started, {}, *written[1:])


def list_notes(plan: ShardPlan) -> list[str]:
    """Return messages for the user about a plan, and files that its output lacks."""
    header = plan.source.header
    return [*header.notes, *plan.notes, *describe_left_out(header.files)]


@dataclass(frozen=True, slots=True, repr=False)
class ShardedOutput:
    """A sharded checkpoint that is planned or written; `saved` is None until it is written.

    Workers make the plan from `request`. It is None if the source is not a path.
    """

    plan: ShardPlan
    outcome: Outcome
    saved: Saved | None = None
    request: PlanRequest | None = None

    def __repr__(self) -> str:
        state = "planned" if self.saved is None else "written"
        return (
            f"<ShardedOutput at {self.outcome.where.path}: {self.plan.grid.ranks} ranks, {state}>"
        )

    @property
    def notes(self) -> list[str]:
        """Messages for the user about the plan."""
        return list_notes(self.plan)

    @property
    def paths(self) -> list[str]:
        """The paths of the ranks' files."""
        return self.outcome.files

    @property
    def kept_bytes(self) -> int:
        """The bytes of tensors that a stopped run has written and that `save` keeps."""
        if self.saved is not None:
            return self.saved.kept_bytes
        work = RankWork(self.plan, list(self.outcome.parts.values()))
        return count_kept_bytes(self.plan, self.outcome, work)

    def save(
        self,
        *,
        force: bool = False,
        threads: int | None = None,
        progress: Callable[[int], object] | None = None,
        on: str | Executor | None = None,
        task_size: int | str = DEFAULT_TASK,
    ) -> ShardedOutput:
        """Write the output; the arguments and errors are those of `shard` and `save_shards`."""
        distribution = None
        if on is not None:
            from weightctl.write.executors.distribution import plan_distribution

            distribution = plan_distribution(
                on,
                self.request,
                self.outcome.where,
                threads=threads,
                memory=DEFAULT_MEMORY,
                task_size=task_size,
            )
        saved = save_shards(
            self.plan,
            self.outcome.where.path,
            force=force,
            threads=threads,
            progress=progress,
            distribution=distribution,
        )
        return replace(self, saved=saved)

    def make_work(self, *, threads: int, memory: int) -> PlannedWork:
        """Return the work, for a worker; each of its threads uses about 2 MB."""
        del threads, memory
        work = RankWork(self.plan, list(self.outcome.parts.values()))
        return PlannedWork(self.plan, self.outcome, work)


def shard(
    source: str | os.PathLike[str] | Weights | Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    tp: int = 1,
    ep: int = 1,
    pp: int = 1,
    rules: str | os.PathLike[str] | Mapping[str, Any] | CutRulesLike | None = None,
    layout: str = "ranks",
    to: str | None = None,
    source_format: str | None = None,
    header_room: int | str = 0,
    force: bool = False,
    dry_run: bool = False,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
    on: str | Executor | None = None,
    task_size: int | str = DEFAULT_TASK,
) -> ShardedOutput:
    """Split a checkpoint for tp x ep x pp ranks, as `weightctl shard` does.

    `source` is a path, a tree of weights, or arrays by name such as a `state_dict()`. `out` is the
    directory to write, with a file for each rank. The tensors of each layer are split across `tp`
    ranks, experts are divided among `ep` groups, and layers among `pp` stages. `rules` is the path
    of a plan file, or a dict with the content of its `[tensors]`, such as
    `{"o_proj": "columnwise"}`; other tensors are split by the rules of the model family. `layout`
    is "ranks" or "vllm", and `to` the format of the files. `header_room` is the room in bytes, or
    text such as "64KB", that each header leaves for later edits. `on` and `task_size` are those of
    `weightctl.convert`.

    Returns the written output. If `dry_run` is set, nothing is written: `plan` and `outcome` of the
    result describe the files, and its `save` writes them. Raises `ShardingError`,
    `ConversionError`, `FormatError` and `OutputError`, which are `WeightctlError`s with a hint.
    """
    request = PlanRequest.of(shard, dict(locals()))
    if isinstance(source, str | os.PathLike):
        weights = open_weights(source, source_format)
    elif source_format is not None:
        raise ConversionError(
            "source_format only applies to a path, but the source is already open",
            hint="remove source_format, or pass it to `open_weights`",
        )
    else:
        weights = loaded_checkpoint(source)
    plan = shard_plan(
        weights,
        Grid(tp, ep, pp),
        rules=_parse_rules(rules),
        layout=layout,
        format_name=to,
    )
    if room := parse_size(header_room) if isinstance(header_room, str) else header_room:
        plan = replace(plan, metadata=leave_room(plan.metadata, plan.format, room))
    planned = ShardedOutput(plan, describe_shards(plan, out), request=request)
    if dry_run:
        return planned
    return planned.save(force=force, threads=threads, progress=progress, on=on, task_size=task_size)


def _parse_rules(
    rules: str | os.PathLike[str] | Mapping[str, Any] | CutRulesLike | None,
) -> CutRulesLike | None:
    if isinstance(rules, str | os.PathLike):
        return read_rules(os.fspath(rules))
    return make_rules(rules) if isinstance(rules, Mapping) else rules
