"""Completion in real shells, and how long it takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from conftest import ROOT
from terminal import STARTS, Shell
from weightctl import convert

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

TINY = ROOT / "fixtures" / "tiny-llama"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("completion")
    shutil.copytree(TINY, made / "model")
    convert(TINY, made / "model.gguf")
    (made / "broken.gguf").write_bytes(b"GGUF, but nothing else")
    return made


@pytest.fixture(scope="module", params=STARTS)
def shell(request: pytest.FixtureRequest, folder: Path) -> Generator[Shell, None, None]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    with Shell(request.param, folder) as started:
        yield started


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("weightctl conv", "weightctl convert "),
        ("weightctl convert model out.gguf --quant Q4_K_", "Q4_K_M"),
        ("weightctl convert model out --dtype bf", "--dtype bf16 "),
        ("weightctl convert model out --to safe", "--to safetensors "),
        ("weightctl verify model --check str", "--check structure "),
        ("weightctl ls model --include model.n", "--include model.norm.weight "),
        ("weightctl ls model.gguf --include token_", "--include token_embd.weight "),
        ("weightctl convert model out.gguf --exclude token_", "--exclude token_embd.weight "),
        ("weightctl shard model out --layout v", "--layout vllm "),
        ("weightctl ls broken.g", "weightctl ls broken.gguf "),
    ],
)
def test_a_shell_completes_the_line(shell: Shell, line: str, expected: str) -> None:
    shown = shell.complete(line, expected)
    assert "rror" not in shown
    assert "Traceback" not in shown


def test_a_shell_shows_no_error_for_a_checkpoint_that_is_damaged(shell: Shell) -> None:
    shell.press("weightctl ls broken.gguf --include tok\t\t")
    shown = shell.clear()
    assert "rror" not in shown


def completed(run: Run, folder: Path, typed: str) -> list[str]:
    done = run(
        cwd=folder,
        _WEIGHTCTL_COMPLETE="complete_bash",
        COMP_WORDS=typed,
        COMP_CWORD=str(typed.count(" ")),
    )
    assert done.returncode == 0
    assert done.stderr == ""
    return done.stdout.split()


def test_recipes_and_types_are_offered_in_the_case_that_is_typed(
    weightctl: Run, folder: Path
) -> None:
    assert completed(weightctl, folder, "weightctl convert a b --quant q4_k") == [
        "q4_k_s", "q4_k_m", "q4_k",
    ]  # fmt: skip
    assert completed(weightctl, folder, "weightctl convert a b --dtype bf") == ["bf16"]


def test_many_tensors_are_offered_one_level_at_a_time(weightctl: Run, tmp_path: Path) -> None:
    import numpy as np

    arrays = {f"layers.{layer}.{name}": np.zeros(1, "f4") for layer in range(80) for name in "ab"}
    convert({**arrays, "head": np.zeros(1, "f4")}, tmp_path / "many.safetensors")
    line = "weightctl ls many.safetensors --include "
    assert completed(weightctl, tmp_path, line) == ["head", "layers.*"]
    offered = completed(weightctl, tmp_path, f"{line}layers.")
    assert offered[:2] == ["layers.0.*", "layers.1.*"]
    assert len(offered) == 80
    assert completed(weightctl, tmp_path, f"{line}layers.79.") == ["layers.79.a", "layers.79.b"]


@pytest.mark.parametrize(
    "typed",
    [
        "weightctl ls broken.gguf --include ",
        "weightctl ls missing --include ",
        "weightctl ls hf://a/b --include ",
        "weightctl ls . --include ",
        "weightctl ls --sort age --include ",
    ],
)
def test_what_cannot_be_completed_is_neither_offered_nor_an_error(
    weightctl: Run, folder: Path, typed: str
) -> None:
    assert completed(weightctl, folder, typed) == []


@pytest.mark.parametrize(
    "typed",
    ["convert model out.gguf --include ", "convert model out --quant ", "verify model --check "],
)
def test_completion_loads_neither_numpy_nor_torch(folder: Path, typed: str) -> None:
    program = (
        "import sys, weightctl.cli\n"
        "try: weightctl.cli.main()\n"
        "except SystemExit: pass\n"
        "sys.exit(str({'numpy', 'torch'} & set(sys.modules) or ''))"
    )
    line = f"weightctl {typed}"
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"_WEIGHTCTL_COMPLETE": "complete_bash"} | words,
    )
    assert done.stderr.strip() == ""
    assert done.stdout.split()
