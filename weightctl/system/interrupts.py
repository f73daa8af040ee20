"""Code sections that Ctrl-C must not interrupt."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def defer_signals() -> Generator[None, None, None]:
    """Delay signals that would raise an exception until the end of the block.

    An exception would corrupt Python's locks and queues, and file operations that take two steps.
    The block must be short, or end by itself.
    """
    came: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                handler = signal.getsignal(number)
                if callable(handler):  # not for the default action of the system
                    handlers[number] = handler
                    signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(signal.Signals(came[0]))
