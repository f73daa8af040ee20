"""The table of executors that run the tasks of a conversion, by the kind given with `--on`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, cast

from weightctl.errors import ConversionError
from weightctl.system.registry import load

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Executor


class WorkerLostError(Exception):
    """A worker has ended while it ran a batch; another worker can run the batch again."""


class ExecutorLine(NamedTuple):
    """A kind of executor, which `--on` selects with `KIND:ADDRESS`.

    `start` refers to a function that takes the address and returns an executor; it is empty if the
    processes share the work without an executor. `address` is the form of the address, empty if the
    kind does not have one. `is_local` says whether all workers are on this machine.
    """

    start: str
    address: str
    summary: str
    is_local: bool = False


class WorkerCounts(NamedTuple):
    """Counts of batches, which are tasks for schedulers.

    `tasks` is the number of all batches, and `done` the number of batches that are done; if
    processes share the work, by this process. `lost` is the number of times that a batch was lost
    with its worker and given to another. `copies` is the number of batches that were also given to
    a second worker while the first one was running.
    """

    tasks: int = 0
    done: int = 0
    lost: int = 0
    copies: int = 0

    def add(self, *, done: int = 0, lost: int = 0, copies: int = 0) -> WorkerCounts:
        """Return the counts with further batches."""
        return self._replace(
            done=self.done + done, lost=self.lost + lost, copies=self.copies + copies
        )


class _CurrentWorkers:
    """Holds the counts of the current run, for progress bars."""

    def __init__(self) -> None:
        self.counts = WorkerCounts()


# The counts of the tasks that the workers of this process's run have done.
WORKERS = _CurrentWorkers()
EXECUTORS = {
    "processes": ExecutorLine(
        "weightctl.write.executors.processes:start", "N", "N processes on this machine", True
    ),
    "dask": ExecutorLine(
        "weightctl.write.executors.dask:start", "//HOST:PORT", "the workers of a Dask cluster"
    ),
    "ranks": ExecutorLine(
        "", "", "processes that torchrun, Slurm or Kubernetes start, each with this command"
    ),
    "ray": ExecutorLine(
        "weightctl.write.executors.ray:start",
        "//HOST:PORT",
        "the workers of a Ray cluster, by default one on this machine",
    ),
}


def is_shared(on: str | Executor) -> bool:
    """Whether several processes run the same command and share its work, without an executor."""
    line = EXECUTORS.get(on) if isinstance(on, str) else None
    return line is not None and not line.start


def is_local(on: str | Executor) -> bool:
    """Whether all workers are known to be on this machine.

    An executor of another kind than the standard library's can state it by an attribute `is_local`.
    """
    if isinstance(on, str):
        line = EXECUTORS.get(on.partition(":")[0])
        return line is not None and line.is_local
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

    is_known = isinstance(on, ProcessPoolExecutor | ThreadPoolExecutor)
    return is_known or getattr(on, "is_local", False) is True


@contextmanager
def hold_executor(on: str | Executor) -> Generator[Executor, None, None]:
    """Start the executor that `on` names, and end it after the context.

    An executor that the caller has made is yielded unchanged, and not ended. Raises
    `ConversionError` if the kind is unknown or the address is invalid.
    """
    if not isinstance(on, str):
        yield on
        return
    kind, _, address = on.partition(":")
    line = EXECUTORS.get(kind)
    if line is None or (address and not line.address):
        forms = [f"{name}:{each.address}".rstrip(":") for name, each in EXECUTORS.items()]
        raise ConversionError(
            f"`{on}` is not an executor",
            hint=f"for {on} processes on this machine, use processes:{on}"
            if on.isdecimal()
            else f"choices: {', '.join(forms)}",
        )
    if not line.start:
        raise ConversionError(
            f"`{on}` cannot be used here: it only divides the writing of an output among processes",
            hint=f"use another executor, such as processes:4; `{on}` works with convert and shard",
        )
    # All functions in the table have this type.
    executor = cast("Callable[[str], Executor]", load(line.start))(address)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def make_portable(error: Exception) -> Exception:
    """Return an error if it can be pickled, or else a `RuntimeError` with the same text."""
    import pickle  # imported here, since `ls` imports this module

    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 # made here
    except Exception:  # noqa: BLE001 # an error of any library can be one that cannot be pickled
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
