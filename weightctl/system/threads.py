"""Work that is shared out among threads, and the memory that each of them works in."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, local
from typing import TYPE_CHECKING, TypeVar

from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Future

__all__ = ["Memory", "cores", "map_in_threads", "thread_count"]

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")

_MOST = 16
# What is begun for each thread before somebody has taken what was made first: a checkpoint may have
# a million pieces, and one that takes long is not to have all other threads wait.
_AHEAD = 64


def cores() -> int:
    """Return on how many cores this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_count(threads: int | None) -> int:
    """Return how many threads work side by side: `threads`, or as many as there are cores.

    Raises `ConversionError` for anything but a number from 1 on.
    """
    given: object = threads  # a caller's types are not checked
    if given is None:
        return cores()
    if type(given) is not int or given < 1:
        raise ConversionError(
            f"threads is {given!r}", hint="give a number from 1 on, or None for one per core"
        )
    return given


class Memory(local):
    """What each thread reads into and writes to, kept for all its work: memory that is new is slow.

    Every thread that uses it has its own.
    """

    def __init__(self) -> None:
        self._kept: dict[str, bytearray] = {}

    def room(self, use: str, nbytes: int) -> memoryview:
        """Return so many bytes for a use, good until the same thread asks for that use again."""
        kept = self._kept.get(use)
        if kept is None or len(kept) < nbytes:
            kept = self._kept[use] = bytearray(nbytes)
        return memoryview(kept)[:nbytes]


@contextmanager
def map_in_threads(
    make: Callable[[_Item, Event], _Made], items: Iterable[_Item], *, threads: int | None = None
) -> Generator[Iterator[_Made]]:
    """Give what `make` makes of each item, in their order, on all cores unless `threads` says less.

    It is given an event too, which is set once nobody waits for what it makes: after an error, or
    Ctrl-C.
    """
    ended = Event()

    def make_item(item: _Item) -> _Made:
        return make(item, ended)

    count = threads or min(os.cpu_count() or 1, _MOST)
    with ThreadPoolExecutor(count) as pool:
        try:
            yield _in_order(pool, make_item, items, count * _AHEAD)
        finally:
            ended.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _in_order(
    pool: ThreadPoolExecutor, make: Callable[[_Item], _Made], items: Iterable[_Item], ahead: int
) -> Iterator[_Made]:
    begun: deque[Future[_Made]] = deque()
    for item in items:
        begun.append(pool.submit(make, item))
        if len(begun) == ahead:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()
