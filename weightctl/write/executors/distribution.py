"""Distributes the tasks of a run over workers, and records what they have done."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError, OutputError
from weightctl.storage.location import is_remote
from weightctl.system.temporary import new_token
from weightctl.system.threads import thread_count
from weightctl.write.executors import WorkerLostError, hold_executor, is_local
from weightctl.write.executors.batches import cut_batches, parse_task_size
from weightctl.write.executors.worker import DEFAULT_TASK, Job, release, run_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor, Future

    from weightctl.storage.base import Writer
    from weightctl.write.executors.worker import PlanRequest
    from weightctl.write.journal import Purpose, Record
    from weightctl.write.targets import Target
    from weightctl.write.tasks import KeyedTask

__all__ = ["Distribution", "distribute", "plan_distribution"]

# A batch whose workers end this often probably ends them.
_MOST_LOST = 5


class Distribution(NamedTuple):
    """How a run is distributed: `on` is an executor or names one, such as "processes:4".

    Workers plan from the `request`; `codecs` is the digest of what its codecs write here. Each
    worker uses `threads`, and `memory` bytes, and takes at most `task_size` bytes of work at a
    time.
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
    memory: int = 0,
    task_size: int | str,
) -> Distribution:
    """Return how a run is distributed; raises `ConversionError` if workers cannot do its work."""
    if request is None:
        raise ConversionError(
            "workers need the path of a checkpoint: they open it themselves",
            hint="save the weights to a file first, or remove `on`",
        )
    if where.is_stream or is_remote(where.path):
        raise ConversionError(
            f"workers cannot write to {where.path}: they write files that all of them can open",
            hint="use a path on this machine or on a shared file system, or remove --on (on in "
            "Python)",
        )
    size = parse_task_size(task_size)
    return Distribution(on, request, codecs, thread_count(threads or 1), memory, size)


def distribute(
    distribution: Distribution,
    purpose: Purpose,
    tasks: Sequence[KeyedTask],
    files: Sequence[Writer],
    record: Callable[[list[Record], int], object],
) -> None:
    """Have workers do all tasks; `record` is called with the records of each batch, and its bytes.

    A batch whose worker has ended is given to another. Raises the first error of a batch, and
    `OutputError` if workers end again and again.
    """
    from weightctl import __version__

    job = Job(
        new_token(),
        distribution.request,
        purpose,
        tuple(file.path for file in files),
        __version__,
        distribution.codecs,
        distribution.threads,
        distribution.memory,
        is_local(distribution.on),
    )
    lost: Counter[int] = Counter()
    batches = cut_batches(tasks, distribution.task_size)
    with hold_executor(distribution.on) as executor:

        def submit(number: int) -> Future[list[Record]]:
            return executor.submit(
                run_batch, job, tuple(task.key for task in batches[number].tasks)
            )

        running = {submit(number): number for number in range(len(batches))}
        try:
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    number = running.pop(future)
                    try:
                        found = future.result()
                    except WorkerLostError as error:
                        lost[number] += 1
                        _refuse_more(lost[number], error)
                        running[submit(number)] = number
                    except BrokenExecutor as error:
                        raise _explain_end(error) from error
                    else:
                        record(found, batches[number].made)
        finally:
            for future in running:
                future.cancel()
            release(job)  # an executor of threads has worked in this process


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
        hint="start it again; --on processes:N (on in Python) replaces workers that end",
    )
