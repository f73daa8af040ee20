"""File systems of a few megabytes that tests fill up, or make read-only."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


def mounted(at: Path, megabytes: int) -> bool:
    """Mount an empty file system in memory; where that is not allowed, do nothing."""
    mount = shutil.which("mount")
    if mount is None:
        return False
    command = [mount, "-t", "tmpfs", "-o", f"size={megabytes}m", "weightctl-test", at]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Generator[Path, None, None]:
    """A file system of 12 MB, which nothing of it outlives."""
    at = tmp_path / "disk"
    at.mkdir()
    if not mounted(at, 12):
        pytest.skip("this machine lets nobody mount a file system")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)


def fill(disk: Path) -> None:
    """Take all the room that is left."""
    with suppress(OSError), (disk / "filler").open("ab", buffering=0) as filler:
        while True:
            filler.write(bytes(1 << 16))


def make_read_only(disk: Path) -> None:
    """Have nothing written to it any more."""
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
