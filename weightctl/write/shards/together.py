"""Several threads that go through the same work, and end together."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, TypeVar

from weightctl.errors import ConversionError
from weightctl.system.interrupts import uninterrupted
from weightctl.write.worker import FEWER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["do_together"]

_Item = TypeVar("_Item")


def do_together(
    do: Callable[[_Item, Event], object], items: Iterable[_Item], *, threads: int
) -> None:
    """Do something with each item, begun in their order; when this ends no thread works any more.

    Each call is given an event too, which is set after an error or Ctrl-C: it ends as soon as it
    can, whatever it raises then. Raises what the first call that fails does, and `ConversionError`
    where there is no thread to be had.
    """
    following: SimpleQueue[_Item] = SimpleQueue()
    for item in items:
        following.put(item)
    outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
    ended = Event()

    def run() -> None:
        try:
            while not ended.is_set():
                do(following.get_nowait(), ended)
        except Empty:
            outcomes.put(None)
        except BaseException as error:  # noqa: BLE001
            outcomes.put(error)

    begun: list[Thread] = []
    try:
        with uninterrupted():
            _begin(run, begun, min(threads, following.qsize()))
        for _ in tuple(begun):
            # The interpreter's own way to wait that Ctrl-C leaves as it was.
            failure = outcomes.get()
            if failure is not None:
                raise failure
    finally:
        with uninterrupted():
            ended.set()
            for thread in begun:
                thread.join()


def _begin(run: Callable[[], None], begun: list[Thread], count: int) -> None:
    for _ in range(count):
        thread = Thread(target=run, name="weightctl", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            if not begun:
                raise ConversionError(f"no thread can be started: {error}", hint=FEWER) from error
            return
        begun.append(thread)
