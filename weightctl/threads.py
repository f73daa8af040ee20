"""Work that is shared out among threads, and the memory that each of them works in."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, local
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

__all__ = ["Memory", "shared_out"]

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")

_MOST = 16


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
def shared_out(
    make: Callable[[_Item, Event], _Made], items: Iterable[_Item], *, threads: int | None = None
) -> Generator[Iterator[_Made]]:
    """Give what `make` makes of each item, in their order, on all cores unless `threads` says less.

    It is given an event too, which is set once nobody waits for what it makes: after an error, or
    Ctrl-C.
    """
    ended = Event()

    def made(item: _Item) -> _Made:
        return make(item, ended)

    with ThreadPoolExecutor(threads or min(os.cpu_count() or 1, _MOST)) as pool:
        try:
            yield pool.map(made, items)
        finally:
            ended.set()
