"""The wall time of a command."""

from __future__ import annotations

import time

__all__ = ["seconds_elapsed", "start_clock"]


class _Clock:
    """When the command began; without `start_clock`, when this module was imported."""

    started = time.monotonic()


def start_clock() -> None:
    """Count the time of the command from now; called before the imports that take long."""
    _Clock.started = time.monotonic()


def seconds_elapsed() -> float:
    """Return the seconds since the command began; imports, reading and planning count too."""
    return time.monotonic() - _Clock.started
