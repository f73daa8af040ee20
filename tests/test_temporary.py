"""A run removes what a killed run has left, and nothing else that looks like it."""

from __future__ import annotations

import fcntl
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from outcomes import OLD, random_weights
from weightctl import Plan, open_weights
from weightctl.errors import OutputError
from weightctl.write.save import save
from weightctl.write.targets import target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def test_what_a_killed_run_has_left_is_removed_by_the_next(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    (tmp_path / "out.gguf.weightctl-0123abcd.partial").write_bytes(b"x" * 1000)
    (tmp_path / "out.gguf.weightctl-4567cdef.partial").mkdir()
    (tmp_path / "out-00001-of-00003.gguf.weightctl-4567cdef.partial").touch()
    assert weightctl("convert", tiny_llama, tmp_path / "out.gguf").returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_what_a_killed_run_has_left_hides_no_checkpoint(tmp_path: Path) -> None:
    save(Plan.copy(random_weights(1), "gguf"), tmp_path / "out.gguf")
    left = tmp_path / "out.gguf.weightctl-0123abcd.partial"
    shutil.copy(tmp_path / "out.gguf", left)
    assert open_weights(tmp_path).header.files == (str(tmp_path / "out.gguf"),)


def test_a_dry_run_removes_nothing(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    left = tmp_path / "out.gguf.weightctl-0123abcd.partial"
    left.write_bytes(OLD)
    assert weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--dry-run").returncode == 0
    assert left.read_bytes() == OLD


def test_what_another_run_is_writing_stays(tmp_path: Path) -> None:
    others = tmp_path / "out.gguf.weightctl-0123abcd.partial"
    with others.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match=r"another run is writing .*out\.gguf"):
            save(Plan.copy(random_weights(1), "gguf"), tmp_path / "out.gguf")
        save(Plan.copy(random_weights(1), "gguf"), tmp_path / "out2.gguf")
    assert sorted(os.listdir(tmp_path)) == [others.name, "out2.gguf"]


@pytest.mark.parametrize("name", ["out.gguf.partial", "out.gguf.weightctl-mine.partial"])
def test_a_file_that_is_only_called_like_a_temporary_one_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(OLD)
    save(Plan.copy(random_weights(1), "gguf"), tmp_path / "out.gguf")
    assert (tmp_path / name).read_bytes() == OLD


def test_an_input_called_like_a_temporary_file_is_safe(tmp_path: Path) -> None:
    source = tmp_path / "out.safetensors.partial"
    save(Plan.copy(random_weights(1), "safetensors"), target(str(source), "safetensors"))
    before = source.read_bytes()
    save(Plan.copy(open_weights(source), "safetensors"), tmp_path / "out.safetensors")
    assert source.read_bytes() == before == (tmp_path / "out.safetensors").read_bytes()
