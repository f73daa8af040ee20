"""Counts of the tasks that the workers of this process's run have done."""

from __future__ import annotations

from typing import NamedTuple


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


class _CurrentWorkers:
    """Holds the counts of the current run, for progress bars."""

    def __init__(self) -> None:
        self.counts = WorkerCounts()


WORKERS = _CurrentWorkers()
