"""Divides the tasks of a run into batches, which workers take one at a time."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weightctl.write.tasks import KeyedTask

__all__ = ["Batch", "cut_batches"]

# More batches than workers, so that all of them end at about the same time.
_LEAST_BATCHES = 64


class Batch:
    """Tasks that a worker carries out together; to schedulers, they are one task."""

    def __init__(self, tasks: Sequence[KeyedTask]) -> None:
        self.tasks = tuple(tasks)

    @cached_property
    def made(self) -> int:
        """The bytes that it writes."""
        return sum(task.made for task in self.tasks)


def cut_batches(tasks: Iterable[KeyedTask], most: int) -> list[Batch]:
    """Divide tasks into batches, each of at most `most` bytes.

    A task of more bytes is alone. Batches depend on the tasks alone, so that all machines cut the
    same ones. Tasks of a batch follow one another in a file of the output.
    """
    ordered = sorted(tasks, key=lambda task: task.place)
    share = max(min(most, sum(task.cost for task in ordered) // _LEAST_BATCHES), 1)
    batches: list[Batch] = []
    batch: list[KeyedTask] = []
    size = 0
    for task in ordered:
        if batch and size + task.cost > share:
            batches.append(Batch(batch))
            batch, size = [], 0
        batch.append(task)
        size += task.cost
    return [*batches, Batch(batch)] if batch else batches
