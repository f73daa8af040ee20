"""A simulation of workers that take the tasks of a run, with failures and slow workers.

The run plans, starts the engine, and gives tasks in their order to workers that are free. Each
worker first plans for itself. A worker is lost after a random time (exponential), and its task is
given to the next worker; another worker takes its place, and plans again. Some workers are slow.
When no task is left, a worker that is free makes a second copy of a task that has taken twice its
expected time, and the first result counts. The store serves all workers at a limited rate.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Inputs", "Outcome", "simulate"]

# Seconds between two looks at what others do.
_PATIENCE = 1.0


class Inputs(NamedTuple):
    """What is assumed: seconds, bytes per second, failures per worker and hour, shares of workers.

    `plan` is the time that each process needs for its plan. `bandwidth` is that of a worker, and
    `store` that of all. `start` is the time of the engine, and `restart` the time until a lost
    worker has another in its place. A share `slow` of the workers takes `slowness` times as long.
    """

    plan: float = 0.0
    bandwidth: float = 1e9
    store: float = 25e9
    start: float = 15.0
    restart: float = 30.0
    failures: float = 1.0
    slow: float = 0.02
    slowness: float = 4.0

    def without_failures(self) -> Inputs:
        """Return the inputs with workers that do not fail, and are equally fast."""
        return self._replace(failures=0.0, slow=0.0)


class Outcome(NamedTuple):
    """The time of a run, the share of the workers' time that was of use, and what was repeated."""

    seconds: float
    efficiency: float
    lost: int
    copies: int
    repeated: float


class _Attempt(NamedTuple):
    task: int
    began: float


def simulate(
    tasks: Sequence[Sequence[float]], ratio: float, count: int, given: Inputs, seed: int
) -> Outcome:
    """Simulate a run; a task has its size, its bytes, and its expected seconds at 1 GB/s."""
    return _Run(tasks, ratio, count, given, seed).finish()


class _Run:
    def __init__(
        self,
        tasks: Sequence[Sequence[float]],
        ratio: float,
        count: int,
        given: Inputs,
        seed: int,
    ) -> None:
        self._random = random.Random(seed)
        self._given = given
        self._count = count
        share = min(given.bandwidth, given.store / count)
        self._seconds = [_estimate(task, share) * ratio for task in tasks]
        # The time that is of use: that of one worker that has the store for itself.
        self._useful = sum(_estimate(task, given.bandwidth) * ratio for task in tasks)
        self._pending = deque(range(len(tasks)))
        self._left = set(self._pending)
        self._slow = [self._random.random() < given.slow for _ in range(count)]
        self._running: dict[int, _Attempt] = {}
        self._copied: set[int] = set()
        self._lost = 0
        self._wasted = 0.0
        # Time, worker, and what happens to it: `free`, `done` or `lost`.
        self._events: list[tuple[float, int, str]] = []

    def finish(self) -> Outcome:
        begin = self._given.plan + self._given.start + self._given.plan
        for worker in range(self._count):
            heapq.heappush(self._events, (begin, worker, "free"))
        now = begin
        while self._left:
            now, worker, event = heapq.heappop(self._events)
            attempt = self._running.pop(worker, None)
            if event == "lost":
                self._lose(worker, attempt, now)
                continue
            if attempt is not None and event == "done":
                self._end(attempt, now)
            self._take(worker, now)
        done_twice = self._wasted / sum(self._seconds)
        efficiency = self._useful / (self._count * now)
        return Outcome(now, efficiency, self._lost, len(self._copied), done_twice)

    def _end(self, attempt: _Attempt, now: float) -> None:
        if attempt.task in self._left:
            self._left.discard(attempt.task)
        else:
            self._wasted += now - attempt.began

    def _lose(self, worker: int, attempt: _Attempt | None, now: float) -> None:
        self._lost += 1
        if attempt is not None:
            self._wasted += now - attempt.began
            others = {each.task for each in self._running.values()}
            if attempt.task in self._left - others:
                self._pending.appendleft(attempt.task)
        back = now + self._given.restart + self._given.plan
        self._slow[worker] = self._random.random() < self._given.slow
        heapq.heappush(self._events, (back, worker, "free"))

    def _take(self, worker: int, now: float) -> None:
        task = self._pending.popleft() if self._pending else self._find_late(now)
        if task is None:
            heapq.heappush(self._events, (now + _PATIENCE, worker, "free"))
            return
        self._running[worker] = _Attempt(task, now)
        took = self._seconds[task] * (self._given.slowness if self._slow[worker] else 1)
        event = "done"
        if self._given.failures:
            until = self._random.expovariate(self._given.failures / 3600)
            if until < took:
                took, event = until, "lost"
        heapq.heappush(self._events, (now + took, worker, event))

    def _find_late(self, now: float) -> int | None:
        """Return a task that takes twice its expected time, and has no second copy yet."""
        late = [
            each.task
            for each in self._running.values()
            if each.task in self._left - self._copied
            and now - each.began > 2 * self._seconds[each.task]
        ]
        self._copied |= {*late[:1]}
        return late[0] if late else None


def _estimate(task: Sequence[float], bandwidth: float) -> float:
    _, nbytes, seconds = task
    # The expected time is that of 1 GB/s.
    return seconds - nbytes / 1e9 + nbytes / bandwidth
