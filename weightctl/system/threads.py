"""Work that is divided among threads, and the memory that each thread uses."""

from __future__ import annotations

import os
from collections import deque
from contextlib import contextmanager
from threading import Event, local
from typing import TYPE_CHECKING, TypeVar

from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Future, ThreadPoolExecutor

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")

_MOST = 16
# The number of items that are submitted for each thread before the first result is taken. A
# checkpoint can have a million pieces, and other threads must not wait for a slow one.
_AHEAD = 64


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_count(threads: int | None) -> int:
    """Return the number of threads: `threads`, or one for each core.

    Raises `ConversionError` unless it is an integer of at least 1.
    """
    given: object = threads  # a caller's types are not checked
    if given is None:
        return cores()
    if type(given) is not int or given < 1:
        raise ConversionError(
            f"{given!r} is not a valid number of threads",
            hint="use an integer of at least 1, or None for one thread per core",
        )
    return given


class Memory(local):
    """Reusable buffers: allocating new memory for each chunk is slow.

    Each thread has its own buffers.
    """

    def __init__(self) -> None:
        self._kept: dict[str, bytearray] = {}
        self._turns = 0

    def room(self, use: str, nbytes: int) -> memoryview:
        """Return a buffer for a use, valid until the same thread asks for the same use again."""
        kept = self._kept.get(use)
        if kept is None or len(kept) < nbytes:
            kept = self._kept[use] = bytearray(nbytes)
        return memoryview(kept)[:nbytes]

    def room_in_turn(self, use: str, nbytes: int, count: int) -> memoryview:
        """Return one of `count` buffers for a use, valid during the next `count` - 1 calls."""
        self._turns = (self._turns + 1) % count
        return self.room(f"{use} {self._turns}", nbytes)


@contextmanager
def map_in_threads(
    make: Callable[[_Item, Event], _Made],
    items: Iterable[_Item],
    *,
    threads: int | None = None,
    ahead: int = _AHEAD,
) -> Generator[Iterator[_Made]]:
    """Yield an iterator over `make(item, event)` for each item, in the order of the items.

    The calls run in `threads` threads, by default one for each core, at most 16; each has `ahead`
    items at the same time, whose results are kept until they are taken. The event is set when the
    results are no longer needed: at the end of the block, after an error, or after Ctrl-C.
    """
    from concurrent.futures import ThreadPoolExecutor  # slow, and few commands need it

    ended = Event()

    def make_item(item: _Item) -> _Made:
        return make(item, ended)

    count = threads or min(os.cpu_count() or 1, _MOST)
    with ThreadPoolExecutor(count) as pool:
        try:
            yield _in_order(pool, make_item, items, count * ahead)
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
