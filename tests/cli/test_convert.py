"""The output of a conversion for people and scripts: the plan before it, the summary after it."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def test_a_dry_run_shows_the_plan_and_writes_nothing(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    done = weightctl("convert", tiny_llama, out, "--quant", "q4_k", "--dry-run")
    assert done.returncode == 0
    assert re.search(r"output\.weight +512x256 +BF16 +-> +Q4_K +73\.7 kB", done.stdout)
    assert "nothing was written" in done.stdout
    assert os.listdir(tmp_path) == []


def test_a_dry_run_knows_the_size_to_the_byte(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    planned = weightctl("convert", tiny_llama, out, "--quant", "q8_0", "--dry-run", "--json")
    done = weightctl("convert", tiny_llama, out, "--quant", "q8_0", "--json")
    planned, done = json.loads(planned.stdout), json.loads(done.stdout)
    assert planned["bytes"] == done["bytes"] == out.stat().st_size
    assert (planned["written"], done["written"]) == (False, True)
    assert planned["tensors"][0]["to"] == "Q8_0"
    assert planned["documents"] == []


def test_the_plan_shows_only_what_is_chosen(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    done = weightctl("convert", tiny_llama, tmp_path / "a.gguf", "--include", "*norm*", "-n")
    assert "output_norm.weight" in done.stdout
    assert "attn_norm.weight" in done.stdout
    assert "attn_q" not in done.stdout
    assert "tied" not in done.stdout


def test_a_plan_that_cannot_be_carried_out_is_shown(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    (tmp_path / "out.gguf").write_text("there")
    done = weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--dry-run")
    assert done.returncode == 2
    assert "nothing was written" in done.stdout
    assert "out.gguf exists" in done.stderr


def test_the_summary_says_what_changed(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    done = weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--quant", "q8_0")
    assert "30 tensors, 3.87 MB -> 2.06 MB (53.3 %)" in done.stdout
    assert "23 x BF16 -> Q8_0" in done.stdout
    assert "7 x BF16 -> F32" in done.stdout
    assert done.stderr == ""


def test_names_that_stay_in_a_gguf_are_reported(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    done = weightctl("convert", tiny_llama, out, "--quant", "q8_0", "--names", "keep")
    assert "7 x BF16 kept" in done.stdout
    assert done.stderr.startswith("note: names and metadata are not translated")


def test_quiet_says_nothing(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    done = weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_files_that_come_out_larger_than_asked_are_reported(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    done = weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--max-shard-size", "5B")
    assert "30 of 30 files are larger than 5B: a tensor is not divided between files" in done.stderr
    assert "out-00001-of-00030.gguf and 29 more (gguf)" in done.stdout
    missing = weightctl("ls", tmp_path / "out.gguf")
    assert "did you mean" in missing.stderr
    assert "out-00001-of-00030.gguf" in missing.stderr
