"""The command as a whole: what stands before its options, completion, and help."""

from __future__ import annotations

import json
import shutil
import time
from typing import TYPE_CHECKING

import pytest

import small_checkpoints
from weightctl.cli import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def test_a_path_alone_is_listed(weightctl: Run, tmp_path: Path) -> None:
    small_checkpoints.small(tmp_path)
    listed = weightctl("ls", "small", "--flat", cwd=tmp_path)
    assert weightctl("small", "--flat", cwd=tmp_path).stdout == listed.stdout
    assert weightctl("./small", cwd=tmp_path).stdout.startswith("./small: llama")
    assert weightctl(".", cwd=tmp_path / "small").stdout.startswith(".: llama")


def test_a_misspelt_path_is_not_an_unknown_command(weightctl: Run) -> None:
    done = weightctl("modle.gguf")
    assert done.returncode == 2
    assert done.stderr.startswith("error: modle.gguf: No such file or directory")


def test_a_misspelt_command_suggests_the_right_one(weightctl: Run) -> None:
    done = weightctl("lss")
    assert done.returncode == 2
    assert "No such command 'lss'. Did you mean 'ls'?" in done.stderr


def test_a_command_is_one_even_where_a_file_has_its_name(weightctl: Run, tmp_path: Path) -> None:
    shutil.copy(small_checkpoints.gguf(tmp_path), tmp_path / "ls")
    assert "Missing argument" in weightctl("ls", cwd=tmp_path).stderr
    assert weightctl("ls", "ls", cwd=tmp_path).returncode == 0


def test_nothing_at_all_gets_the_help(weightctl: Run) -> None:
    done = weightctl()
    for name in COMMANDS:
        assert f"│ {name} " in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("weightctl ", list(COMMANDS)),
        ("weightctl ls --sort ", ["name", "size", "offset"]),
        ("weightctl model.gguf --sort ", ["name", "size", "offset"]),
        ("weightctl ls --from ", ["safetensors", "gguf", "pytorch"]),
        ("weightctl shard --layout ", ["ranks", "vllm"]),
        ("weightctl shard --to ", ["safetensors", "gguf"]),
        ("weightctl shard --tp ", ["auto"]),
    ],
)
def test_the_shell_completes_what_is_typed(weightctl: Run, typed: str, offered: list[str]) -> None:
    done = weightctl(
        _WEIGHTCTL_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(typed.count(" "))
    )
    assert done.stdout.split() == offered


@pytest.mark.parametrize(
    "asked",
    ["convert tiny-llama out.gguf", "shard tiny-llama out --tp 2", "shard --gather set out"],
)
def test_the_time_of_a_summary_is_that_of_the_whole_command(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, asked: str
) -> None:
    (tmp_path / "tiny-llama").symlink_to(tiny_llama)
    if "--gather" in asked:
        assert weightctl("shard", "tiny-llama", "set", "--tp", "2", cwd=tmp_path).returncode == 0
    started = time.monotonic()
    done = weightctl(*asked.split(), "--json", cwd=tmp_path)
    whole = time.monotonic() - started
    document = json.loads(done.stdout)
    # Imports alone take longer than a tenth of the whole; the writing of so little does not.
    assert whole / 4 < document["seconds"] < whole
    written = document["bytes_per_second"] * document["seconds"]
    assert written == pytest.approx(document["bytes"], rel=0.02)
