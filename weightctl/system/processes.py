"""Processes of this machine: their identity, their limits, and the signals that end them.

`defer_signals` is for code that Ctrl-C must not interrupt, and `without_collection` for code that
creates many objects.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = [
    "ENDING_SIGNALS", "defer_signals", "find_memory", "find_start", "name_host",
    "prepare_terminal", "raise_file_limit", "without_collection",
]  # fmt: skip

# The signals by which a system or a user ends a process, beside Ctrl-C.
ENDING_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
)


def raise_file_limit() -> None:
    """Let this process open as many files as the system allows.

    A checkpoint that is sharded for many ranks has more files than the usual limit of 1024.
    """
    with suppress(ImportError, OSError, ValueError):  # some systems have an additional limit
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def prepare_terminal() -> None:
    """Let terminals act on escape sequences; where they cannot, `TERM` says so."""
    if sys.platform == "win32":
        from weightctl.system.windows import allow_escapes

        if not allow_escapes():
            os.environ["TERM"] = "dumb"


def find_memory() -> int:
    """Return the size of this machine's memory, in bytes."""
    if sys.platform == "win32":
        from weightctl.system.windows import find_memory as find

        return find()
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def name_host() -> str:
    """Return a name for the machine or container in which process ids are valid."""
    import socket  # few commands need it

    parts = [socket.gethostname()]
    for path in ("/proc/self/ns/pid", "/proc/sys/kernel/random/boot_id"):
        with suppress(OSError):
            if os.path.islink(path):
                parts.append(os.readlink(path))
            else:
                with open(path, encoding="ascii") as file:
                    parts.append(file.read().strip())
    return " ".join(parts)


def find_start(number: int) -> str:
    """Return the start time of a process as text; empty if the process has ended."""
    if sys.platform == "win32":
        from weightctl.system.windows import find_process_start

        return find_process_start(number)
    try:
        with open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        if os.path.isdir("/proc/self"):
            return ""
        with suppress(ProcessLookupError, PermissionError):
            os.kill(number, 0)
            return "running"
        return ""
    return "" if fields[0] in {"Z", "X"} else fields[19]


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
            for number in (signal.SIGINT, *ENDING_SIGNALS):
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


@contextmanager
def without_collection() -> Generator[None, None, None]:
    """Disable the garbage collector in the block.

    If hundreds of thousands of objects are created, the collector takes longer than their creation,
    and finds nothing to free.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
