"""Moments that Ctrl-C must not fall into."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["defer_signals"]


@contextmanager
def defer_signals() -> Generator[None, None, None]:
    """Hold back, until the end of the block, signals whose answer would be an exception inside.

    Python's own locks and queues do not survive one, and neither does what takes two steps on a
    disk. The block must be short, or end by itself.
    """
    came: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                handler = signal.getsignal(number)
                if callable(handler):  # and not the system's own way, which asks nobody
                    handlers[number] = handler
                    signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(signal.Signals(came[0]))
