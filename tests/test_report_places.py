"""A report does not replace the output, nor another file."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from outcomes import OLD, untouched
from weightctl import Plan, open_weights
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_report_is_not_a_file_of_the_output(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "out"
    save(Plan.copy(open_weights(tiny_llama), "safetensors"), out)
    with untouched(tmp_path):
        done = weightctl("convert", tiny_llama, out, "--force", "--report", out / name)
    assert done.returncode == 2


@pytest.mark.parametrize("name", ["a.gguf", "a-00001-of-00005.gguf", "a-00005-of-00005.gguf"])
def test_a_report_is_not_a_part_of_the_output(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, name: str
) -> None:
    done = weightctl(
        *("convert", tiny_llama, tmp_path / "a.gguf", "--max-shard-size", "1MB"),
        *("--force", "--report", tmp_path / name),
    )
    assert done.returncode == 2
    assert "is the same as the output" in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_report_is_not_written_over_anything(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out, there = tmp_path / "out.gguf", tmp_path / "there.json"
    there.write_bytes(OLD)
    with untouched(tmp_path):
        for report, says in ((there, "exists"), (out, "is the same as the output")):
            done = weightctl("convert", tiny_llama, out, "--report", report)
            assert done.returncode == 2
            assert says in done.stderr


def test_a_report_takes_the_place_of_a_file_only_with_force(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out, report = tmp_path / "out.gguf", tmp_path / "report.json"
    report.write_bytes(OLD)
    with untouched(tmp_path):
        done = weightctl("convert", tiny_llama, out, "--report", report)
    assert done.returncode == 2
    assert f"{report} exists" in done.stderr
    assert weightctl("convert", tiny_llama, out, "--report", report, "--force").returncode == 0
    assert json.loads(report.read_text())["written"] is True


def test_a_report_never_takes_the_place_of_a_pipe(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    os.mkfifo(report)
    # With a reader, because writing into the pipe would be right too.
    reader = os.open(report, os.O_RDONLY | os.O_NONBLOCK)
    weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--report", report, "--force")
    os.close(reader)
    assert stat.S_ISFIFO(report.stat().st_mode)
