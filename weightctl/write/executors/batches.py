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
def list_keyed_tasks(work: BatchWork, done: Collection[tuple[int, str]] = ()) -> list[KeyedTask]:
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
