"""Keeps Python from looking for garbage where there cannot be any."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["without_collection"]


@contextmanager
def without_collection() -> Generator[None, None, None]:
    """Have no garbage looked for: all that is made meanwhile is kept for a while.

    Of hundreds of thousands of objects, looking takes longer than making them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
