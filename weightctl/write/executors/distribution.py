"""Distributes the tasks of a run over workers, and records what they have done.

Tasks are divided into batches, which workers take one at a time.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, wait
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError, OutputError
from weightctl.plan.choices import DEFAULT_TASK
from weightctl.storage.location import has_commits, is_remote
from weightctl.system import __version__
from weightctl.system.processes import without_collection
from weightctl.system.temporary import new_token
from weightctl.system.threads import thread_count
from weightctl.text.sizes import parse_size
from weightctl.write.executors import (
    WORKERS,
    WorkerCounts,
    WorkerLostError,
    hold_executor,
    is_local,
)
from weightctl.write.executors.worker import Job, release, run_batch
from weightctl.write.tasks import BANDWIDTH

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from concurrent.futures import Executor, Future

    from weightctl.write.executors.destinations import Place
    from weightctl.write.executors.worker import BatchResult, PlanRequest
    from weightctl.write.journal import Purpose
    from weightctl.write.outcome import Outcome
    from weightctl.write.targets import Target
    from weightctl.write.tasks import KeyedTask, Work

# More batches than workers, so that all of them end at about the same time.
_LEAST_BATCHES = 64


class Batch:
    """Tasks that a worker carries out together, which are one task for schedulers."""

    def __init__(self, tasks: Sequence[KeyedTask]) -> None:
        self.tasks = tuple(tasks)

    @cached_property
    def read(self) -> int:
        """The number of bytes that the batch reads."""
        return sum(task.read for task in self.tasks)

    @cached_property
    def made(self) -> int:
        """The number of bytes that the batch writes."""
        return sum(task.made for task in self.tasks)

    @cached_property
    def cost(self) -> int:
        """The sum over its tasks of the bytes that are read or written, whichever is more."""
        return sum(task.cost for task in self.tasks)

    def estimate_seconds(self, bandwidth: float = BANDWIDTH) -> float:
        """Return the expected time on one core, with `bandwidth` bytes per second."""
        return sum(task.estimate_seconds(bandwidth) for task in self.tasks)


@without_collection()
def list_keyed_tasks(work: Work, done: Collection[tuple[int, str]] = ()) -> list[KeyedTask]:
    """Return the tasks that are not done, with their bytes and expected times."""
    return [work.measure(task) for task in work.list_tasks(done)]


@without_collection()
def cut_batches(tasks: Iterable[KeyedTask], most: int = DEFAULT_TASK) -> list[Batch]:
    """Divide tasks into batches that take about the same time, each of at most `most` bytes.

    A larger task is a batch of its own. Batches only depend on the tasks, so that all machines make
    the same batches. The tasks of a batch are in the order of the output files.
    """
    ordered = sorted(tasks, key=lambda task: task.place)
    nbytes = sum(task.cost for task in ordered)
    count = max(_LEAST_BATCHES, -(-nbytes // most))
    share = sum(task.estimate_seconds() for task in ordered) / count
    batches: list[Batch] = []
    batch: list[KeyedTask] = []
    size, seconds = 0, 0.0
    for task in ordered:
        own = task.estimate_seconds()
        # The last task may exceed the share by half of its own time.
        if batch and (size + task.cost > most or seconds + own / 2 > share):
            batches.append(Batch(batch))
            batch, size, seconds = [], 0, 0.0
        batch.append(task)
        size += task.cost
        seconds += own
    return [*batches, Batch(batch)] if batch else batches


def parse_task_size(given: int | str) -> int:
    """Return the size of a task in bytes; raises `ConversionError` if it is less than 1."""
    size = parse_size(given) if isinstance(given, str) else given
    if size < 1:
        raise ConversionError(f"a task cannot have {given} bytes", hint="write a size such as 2GB")
    return size


# If this many workers end while they run one batch, the batch is probably the reason.
_MOST_LOST = 5
# If no batch has ended for this multiple of the longest batch's time, and for this number of
# seconds, the remaining batches are also given to second workers.
SLOW = 2.0
PATIENCE = 10.0


class Distribution(NamedTuple):
    """How a run is distributed among workers.

    `on` is an executor, or text such as "processes:4". Workers make the plan from the `request`.
    `codecs` is the digest of this machine's results of the codecs. Each worker uses `threads`
    threads and `memory` bytes, and takes at most `task_size` bytes of work at a time.
    """

    on: str | Executor
    request: PlanRequest
    codecs: str
    threads: int
    memory: int
    task_size: int = DEFAULT_TASK


def plan_distribution(
    on: str | Executor,
    request: PlanRequest | None,
    where: Target,
    *,
    codecs: str = "",
    threads: int | None,
    memory: int,
    task_size: int | str,
) -> Distribution:
    """Plan the distribution of a run; raises `ConversionError` if workers cannot do its work."""
    if request is None:
        raise ConversionError(
            "workers need the path of a checkpoint: they open it themselves",
            hint="save the weights to a file first, or remove `on`",
        )
    if where.is_stream or has_commits(where.path):
        raise ConversionError(
            f"workers cannot write to {where.path}, which takes the bytes in order",
            hint="use a path on this machine or on a shared file system, or the URL of an object "
            "store; or remove --on (on=... in Python)",
        )
    size = parse_task_size(task_size)
    return Distribution(on, request, codecs, thread_count(threads or 1), memory, size)


def refuse_seams(outcome: Outcome) -> None:
    """Raise `ConversionError` if an object in a store would have checksums between tensors.

    No worker would have all bytes of the part of the upload that contains a checksum.
    """
    if is_remote(outcome.path) and any(each.between is not None for each in outcome.parts.values()):
        raise ConversionError(
            f"workers cannot write {outcome.where.format} files to {outcome.path}: a "
            "checksum follows each tensor, and no single worker has all bytes of the part of the "
            "upload that contains it",
            hint="write safetensors or GGUF, or remove --on (on=... in Python)",
        )


def make_job(distribution: Distribution, purpose: Purpose, place: Place, *, token: str) -> Job:
    """Return the job, which has the data that all workers need."""
    return Job(
        token,
        distribution.request,
        purpose,
        place,
        __version__,
        distribution.codecs,
        distribution.threads,
        distribution.memory,
        is_local(distribution.on),
    )


def distribute(
    distribution: Distribution,
    purpose: Purpose,
    tasks: Sequence[KeyedTask],
    place: Place,
    accept: Callable[[BatchResult, int], object],
) -> WorkerCounts:
    """Run all tasks on workers; `accept` gets the result of each batch, and its bytes.

    If a worker ends, its batch is given to another worker. If no batch ends for a long time, the
    remaining batches are also given to second workers, and the first result counts. Raises the
    first error of a batch, and `OutputError` if workers end repeatedly.
    """
    job = make_job(distribution, purpose, place, token=new_token())
    batches = cut_batches(tasks, distribution.task_size)
    with hold_executor(distribution.on) as executor:
        try:
            return _Run(executor, job, batches, accept).wait()
        finally:
            release(job)  # an executor of threads has opened files in this process


class _Run:
    """Runs the batches of a job on an executor."""

    def __init__(
        self,
        executor: Executor,
        job: Job,
        batches: Sequence[Batch],
        accept: Callable[[BatchResult, int], object],
    ) -> None:
        self._executor = executor
        self._job = job
        self._batches = batches
        self._accept = accept
        self._counts = WorkerCounts(len(batches))
        WORKERS.counts = self._counts
        self._lost: Counter[int] = Counter()
        self._left = set(range(len(batches)))
        self._copied: set[int] = set()
        self._running: dict[Future[BatchResult], int] = {}
        self._longest = 0.0

    def wait(self) -> WorkerCounts:
        """Run all batches, and return the counts when they are done."""
        for number in sorted(self._left):
            self._submit(number)
        try:
            while self._left:
                most = max(SLOW * self._longest, PATIENCE) if self._longest else None
                done, _ = wait(self._running, most, return_when=FIRST_COMPLETED)
                for future in done:
                    self._end(future, self._running.pop(future))
                if not done:
                    self._copy()
        finally:
            for future in self._running:
                future.cancel()
        return self._counts

    def _count(self, **counts: int) -> None:
        self._counts = WORKERS.counts = self._counts.add(**counts)

    def _submit(self, number: int) -> None:
        keys = tuple(task.key for task in self._batches[number].tasks)
        self._running[self._executor.submit(run_batch, self._job, number, keys)] = number

    def _copy(self) -> None:
        """Give the remaining batches to second workers, since the first ones may never end."""
        for number in sorted(self._left - self._copied):
            self._copied.add(number)
            self._count(copies=1)
            self._submit(number)

    def _end(self, future: Future[BatchResult], number: int) -> None:
        if number not in self._left:  # the other worker was faster
            return
        try:
            found = future.result()
        except WorkerLostError as error:
            self._lost[number] += 1
            self._count(lost=1)
            _refuse_more(self._lost[number], error)
            self._submit(number)
        except BrokenExecutor as error:
            raise _explain_end(error) from error
        else:
            self._left.discard(number)
            self._longest = max(self._longest, found.seconds)
            self._count(done=1)
            self._accept(found, self._batches[number].made)


def _refuse_more(count: int, error: WorkerLostError) -> None:
    if count >= _MOST_LOST:
        raise OutputError(
            f"{count} workers have ended while they ran the same task: {error}",
            hint="check whether the machines have enough memory: --mem (memory in Python) is the "
            "limit for each worker",
        ) from error


def _explain_end(error: BrokenExecutor) -> OutputError:
    return OutputError(
        f"the executor has ended: {error}",
        hint="start it again, or use --on processes:N (on=... in Python), which replaces workers "
        "that end",
    )
