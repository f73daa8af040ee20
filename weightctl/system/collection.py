"""Control of Python's garbage collector."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


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
