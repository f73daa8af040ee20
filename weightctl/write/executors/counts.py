"""Counts of what the workers of this process's run have done."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["WORKERS", "WorkerCounts"]


class WorkerCounts(NamedTuple):
    """What workers have done, in batches: to schedulers, they are tasks.

    Of `tasks`, `done` are done; where processes share the work, by this one. `lost` were lost with
    a worker and given to another. `copies` were given to a second worker while the first one ran.
    """

    tasks: int = 0
    done: int = 0
    lost: int = 0
    copies: int = 0


class _CurrentWorkers:
    """The counts of the run that goes on, for those who show its progress."""

    def __init__(self) -> None:
        self.counts = WorkerCounts()


WORKERS = _CurrentWorkers()
