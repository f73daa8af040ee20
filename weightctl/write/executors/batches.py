"""Batches of tasks, which workers take."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.write.tasks import KeyedTask

__all__ = ["batch_size", "cut_batches"]

# More batches than workers, so that all of them end at about the same time.
_LEAST_BATCHES = 64


def cut_batches(tasks: Iterable[KeyedTask], most: int) -> list[tuple[KeyedTask, ...]]:
    """Return tasks in batches of at most `most` bytes; a larger task is alone.

    Tasks of a batch write to the same place, so that few parts of uploads are shared.
    """
    batches: list[list[KeyedTask]] = []
    size = 0
    for task in sorted(tasks, key=lambda each: each.place):
        if not batches or size + task.cost > most:
            batches.append([])
            size = 0
        batches[-1].append(task)
        size += task.cost
    return [tuple(batch) for batch in batches]


def batch_size(tasks: Iterable[KeyedTask], most: int) -> int:
    """Return the bytes of a batch of these tasks, at most `most`."""
    return max(min(most, sum(task.cost for task in tasks) // _LEAST_BATCHES), 1)
