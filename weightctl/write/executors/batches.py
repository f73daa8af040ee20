"""Divides the tasks of a run into batches, which workers take one at a time."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError
from weightctl.system.collection import without_collection
from weightctl.text.sizes import parse_size
from weightctl.write.executors.worker import DEFAULT_TASK
from weightctl.write.tasks import BANDWIDTH

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from weightctl.write.executors.worker import BatchWork
    from weightctl.write.tasks import KeyedTask

__all__ = ["Batch", "cut_batches", "list_keyed_tasks", "parse_task_size"]

# More batches than workers, so that all of them end at about the same time.
_LEAST_BATCHES = 64


class Batch:
    """Tasks that a worker carries out together; to schedulers, they are one task."""

    def __init__(self, tasks: Sequence[KeyedTask]) -> None:
        self.tasks = tuple(tasks)

    @cached_property
    def read(self) -> int:
        """The bytes that it reads."""
        return sum(task.read for task in self.tasks)

    @cached_property
    def made(self) -> int:
        """The bytes that it writes."""
        return sum(task.made for task in self.tasks)

    @cached_property
    def cost(self) -> int:
        """The bytes that its tasks read or write, whichever is more."""
        return sum(task.cost for task in self.tasks)

    def estimate_seconds(self, bandwidth: float = BANDWIDTH) -> float:
        """Return the expected time on one core that reads and writes so many bytes a second."""
        return sum(task.estimate_seconds(bandwidth) for task in self.tasks)


@without_collection()
def list_keyed_tasks(work: BatchWork, done: Collection[tuple[int, str]] = ()) -> list[KeyedTask]:
    """Return the tasks of a work that are not done, with their bytes and expected times."""
    return [work.measure(task) for task in work.list_tasks(done)]


@without_collection()
def cut_batches(tasks: Iterable[KeyedTask], most: int = DEFAULT_TASK) -> list[Batch]:
    """Divide tasks into batches that take about the same time, each of at most `most` bytes.

    A task of more bytes is alone. Batches depend on the tasks alone, so that all machines cut the
    same ones. Tasks of a batch follow one another in a file of the output.
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
    """Return the bytes of a task from a number or text; raises `ConversionError` for none."""
    size = parse_size(given) if isinstance(given, str) else given
    if size < 1:
        raise ConversionError(f"a task cannot have {given} bytes", hint="write a size such as 2GB")
    return size
