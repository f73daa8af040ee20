"""The wall time of a command."""

from __future__ import annotations

import time


class _Clock:
    """The time when the command began: at `start_clock`, or else when this module was imported."""

    started = time.monotonic()


def start_clock() -> None:
    """Start the clock of the command; called before slow imports."""
    _Clock.started = time.monotonic()


def seconds_elapsed() -> float:
    """Return the seconds since the command began, including imports, reading and planning."""
    return time.monotonic() - _Clock.started
