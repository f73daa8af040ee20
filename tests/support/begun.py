"""A conversion in a separate process that has begun to write."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

from outcomes import leftovers

if TYPE_CHECKING:
    from pathlib import Path


def begun(place: Path, *arguments: str | Path) -> subprocess.Popen[bytes]:
    """Start a conversion; return as soon as its temporary file exists."""
    process = subprocess.Popen(
        [sys.executable, "-m", "weightctl", "convert", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while not leftovers(place):
        assert process.poll() is None
        time.sleep(0.001)
    return process
