"""Writes plans to files, a directory, or a pipe."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial as bind
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.formats.base import write_in_order
from weightctl.plan.plan import Plan
from weightctl.storage.location import is_remote
from weightctl.system.phases import announce
from weightctl.system.threads import thread_count
from weightctl.text.sizes import format_size
from weightctl.write.conversion_tasks import (
    ConversionWork,
    add_loss,
    count_threads,
    memory_budget,
)
from weightctl.write.digests import refuse_altered
from weightctl.write.outcome import describe
from weightctl.write.output import write_output
from weightctl.write.targets import Target, open_stream, refuse_what_is_there, stream_name, target
from weightctl.write.tasks import cut_tasks
from weightctl.write.threads import run_in_order

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Mapping,
    )

    from weightctl.codecs.loss import Loss
    from weightctl.storage.base import Bytes, FileRange
    from weightctl.weights.data import Source
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.protocol import Weights
    from weightctl.weights.tree import Checkpoint
    from weightctl.write.conversion_tasks import Filled
    from weightctl.write.executors import WorkerCounts
    from weightctl.write.executors.distribution import Distribution
    from weightctl.write.outcome import Outcome


class Saved(NamedTuple):
    """The result of a save: the files, the time in seconds, and the rounding errors by tensor.

    `kept_bytes` are the bytes of tensors that a stopped run had already written. `started_over` is
    the reason why the files of a stopped run were not continued; it is empty if they were
    continued, or if there were none. `pull_request` is the URL of the pull request with the output,
    empty if none was requested. `workers` are the counts of workers, None without workers. If
    processes share an output, `is_last` is True for the process that has completed it.
    """

    outcome: Outcome
    seconds: float
    losses: Mapping[str, Loss]
    kept_bytes: int = 0
    started_over: str = ""
    pull_request: str = ""
    workers: WorkerCounts | None = None
    is_last: bool = True

    def __repr__(self) -> str:
        path, size = self.outcome.where.path, format_size(self.outcome.nbytes)
        return f"<Saved {path}: {size} in {self.seconds:.1f} s>"

    @property
    def paths(self) -> list[str]:
        """The paths of the checkpoint's files; the index or the first part comes first."""
        return self.outcome.files

    @property
    def nbytes(self) -> int:
        """The number of bytes in the checkpoint's files."""
        return self.outcome.nbytes

    @property
    def written_bytes(self) -> int:
        """The number of bytes of tensors that this run has written."""
        return self.outcome.tensor_bytes - self.kept_bytes


def save(
    plan: Plan | Weights | Mapping[str, Any] | Iterator[tuple[str, Any]],
    where: Target | str | os.PathLike[str],
    *,
    force: bool = False,
    threads: int | None = None,
    memory: int | str | None = None,
    progress: Callable[[int], object] | None = None,
    distribution: Distribution | None = None,
    opened: Source | None = None,
) -> Saved:
    """Write a plan; afterwards, the output is complete, or after an error the target is unchanged.

    A tree of weights, or arrays by name such as a module's or torch's `state_dict()`, are stored
    unchanged, in the format that the target selects. So are pairs of names and arrays from a
    generator, which can be larger than memory together. `where` is a `Target`, or a path that
    selects the format of the plan. `threads` is the number of threads, by default one for each
    core, and `memory` the limit of memory in bytes, or text such as "512MiB"; neither changes the
    output. `progress` is called with the number of bytes of each chunk written, by one thread at a
    time. If a `distribution` is given, its workers do the work. If the source of the plan is
    derived from `opened`, and that is a sharded checkpoint, altered shards are refused.

    A run that is stopped by Ctrl-C, by kill -9, or by an error of the disk or the source leaves its
    temporary files and a journal, and saving the same plan with the same input continues it. No
    files are left after an error that would occur again, or if the run took less than a second.

    Raises the errors of `describe` and `Outcome.refuse` before anything is written, and
    `FormatError` if the source cannot be read, or changes during the run.
    """
    started = time.monotonic()
    budget, count = memory_budget(memory), thread_count(threads)
    if not isinstance(where, Target):
        where = target(os.fspath(where), plan.format if isinstance(plan, Plan) else None)
    if not isinstance(plan, Plan):
        given = _collect(plan, where, force=force) if isinstance(plan, Iterator) else plan
        plan = Plan.copy(given, where.format)
    outcome = describe(plan, where)
    count = count_threads(count, budget)
    work = ConversionWork(plan, list(outcome.parts.values()), threads=count, memory=budget)
    if where.is_stream:
        outcome.refuse(force=force)
        if opened is not None:
            refuse_altered(opened, threads=count)
        announce(progress, f"writing {stream_name(where.path)}", outcome.tensor_bytes)
        losses = write_stream(plan, outcome, work, threads=count, progress=progress)
        return Saved(outcome, time.monotonic() - started, losses)
    written = write_output(
        plan,
        outcome,
        work,
        force=force,
        threads=count,
        progress=progress,
        memory=budget,
        distribution=distribution,
        opened=opened,
    )
    losses = work.add_losses(written.records)
    seconds = time.monotonic() - started
    return Saved(outcome, seconds, losses, *written[1:])


def _collect(tensors: Iterator[tuple[str, Any]], where: Target, *, force: bool) -> Checkpoint:
    from weightctl.write.generated import collect_tensors  # few tensors are generated

    if not where.is_stream:
        refuse_what_is_there([where.path], force=force)
    is_local = not where.is_stream and not is_remote(where.path)
    beside = os.path.dirname(where.path) or os.curdir
    return collect_tensors(tensors, beside if is_local else gettempdir())


# The size of tasks. A pipe takes chunks in order, so tasks are small.
_STREAMED = 2 << 20


def write_stream(
    plan: Plan,
    outcome: Outcome,
    work: ConversionWork,
    *,
    threads: int,
    progress: Callable[[int], object] | None,
) -> dict[str, Loss]:
    """Write the single file of an outcome to a pipe; return the rounding errors by tensor."""
    ((_, layout),) = outcome.parts.items()
    tasks = list(cut_tasks(plan, [layout], nbytes=_STREAMED))
    work.expect(tasks)
    # If checksums are written, bytes are read; otherwise, ranges of files may be copied.
    results = work.results_in_order
    fill = bind(work.fill, ranges=layout.between is None, results=results)
    losses: dict[str, Loss] = {}
    with open_stream(outcome.where.path) as stream:
        filled = run_in_order(fill, tasks, threads=threads, results=results)
        try:
            pull = _Pull(filled, losses, progress)
            write_in_order(layout, stream, pull)
        finally:
            filled.close()
    plan.source.refuse_change()
    return losses


class _Pull:
    """Returns the bytes of each tensor, when called for the tensors in order."""

    def __init__(
        self,
        filled: Iterator[Filled],
        losses: dict[str, Loss],
        progress: Callable[[int], object] | None,
    ) -> None:
        self._filled = filled
        self._losses = losses
        self._progress = progress
        self._ahead: Filled | None = None

    def __call__(self, info: TensorInfo) -> Iterator[Bytes | FileRange]:
        if self._ahead is None:
            self._ahead = next(self._filled, None)
        while self._ahead is not None and self._ahead.info is info:
            _, _, data, loss = self._ahead
            add_loss(self._losses, info.name, loss)
            yield data
            if self._progress is not None:
                self._progress(data.nbytes)
            self._ahead = next(self._filled, None)
