"""What is made once for all tests of a run, whichever of its processes asks first."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

__all__ = ["once", "shared"]


def shared(factory: pytest.TempPathFactory) -> Path:
    """Return a directory that all workers of a run of tests know."""
    base = factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


def once(path: Path, make: Callable[[Path], object]) -> Path:
    """Return a path, made under a temporary name where it is not there; others wait."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f"{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                half = path.with_name(f"half-{path.name}")
                make(half)
                half.rename(path)
    return path
