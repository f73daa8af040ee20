"""Checkpoints with more files than a process can usually have open."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sharded_files import cut, layers
from weightctl.write.shard import save_shards

if TYPE_CHECKING:
    from pathlib import Path

RANKS = 40


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scratch = tmp_path_factory.mktemp("many")
    save_shards(cut(layers(scratch / "model", count=1), RANKS), scratch / "out")
    return scratch / "out"


def limited(limit: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `weightctl` in a shell that sets the limit of open files."""
    return subprocess.run(
        ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", sys.executable, "-m", "weightctl",
         *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_as_many_files_are_open_as_the_system_allows(shards: Path) -> None:
    done = limited(f"-S -n {RANKS + 10}", "ls", shards)
    assert done.returncode == 0, done.stderr
    assert f"{RANKS} ranks" in done.stdout


# Three streams are open too. With one more file, all could be opened, but no module imported.
@pytest.mark.parametrize("limit", range(RANKS, RANKS + 3))
def test_where_no_more_may_be_open_the_file_is_named(limit: int, shards: Path) -> None:
    done = limited(f"-n {limit}", "ls", shards)
    assert done.returncode == 2
    assert "model.safetensors" in done.stderr
    assert "`ulimit -n`" in done.stderr


def test_where_no_module_can_be_imported_the_limit_is_named(shards: Path) -> None:
    done = limited(f"-n {RANKS + 3}", "ls", shards)
    assert done.returncode == 2
    assert "Too many open files" in done.stderr
    assert "`ulimit -n`" in done.stderr
