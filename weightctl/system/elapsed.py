"""The wall time of a command, from the start of its process."""

from __future__ import annotations

import time

__all__ = ["seconds_elapsed"]

# `weightctl.__main__` imports this module before any that takes long.
_STARTED = time.monotonic()


def seconds_elapsed() -> float:
    """Return the seconds since the command began; imports, reading and planning count too."""
    return time.monotonic() - _STARTED
