"""Completion in real shells, and how long it takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from commands import TINY, list_completions
from each import each, usual
from terminal import STARTS, Shell
from weightctl import convert

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


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
        ("weightctl ls model --include model.n", "--include model.norm.weight "),
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


def test_recipes_and_types_are_offered_in_the_case_that_is_typed(folder: Path) -> None:
    assert list_completions(folder, "weightctl convert a b --quant q4_k") == [
        "q4_k_s", "q4_k_m", "q4_k",
    ]  # fmt: skip
    assert list_completions(folder, "weightctl convert a b --dtype bf") == ["bf16"]


@each(
    "typed, offered",
    [
        ("convert model out --to safe", "safetensors"),
        ("verify model --check str", "structure"),
        ("ls model.gguf --include token_", "token_embd.weight"),
        ("convert model out.gguf --exclude token_", "token_embd.weight"),
        ("shard model out --layout v", "vllm"),
    ],
)
def test_values_of_an_option_are_offered(typed: str, offered: str, folder: Path) -> None:
    assert list_completions(folder, f"weightctl {typed}") == [offered]


def test_many_tensors_are_offered_one_level_at_a_time(tmp_path: Path) -> None:
    import numpy as np

    arrays = {f"layers.{layer}.{name}": np.zeros(1, "f4") for layer in range(80) for name in "ab"}
    convert({**arrays, "head": np.zeros(1, "f4")}, tmp_path / "many.safetensors")
    line = "weightctl ls many.safetensors --include "
    assert list_completions(tmp_path, line) == ["head", "layers.*"]
    offered = list_completions(tmp_path, f"{line}layers.")
    assert offered[:2] == ["layers.0.*", "layers.1.*"]
    assert len(offered) == 80
    assert list_completions(tmp_path, f"{line}layers.79.") == ["layers.79.a", "layers.79.b"]


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
def test_what_cannot_be_completed_is_neither_offered_nor_an_error(folder: Path, typed: str) -> None:
    assert list_completions(folder, typed) == []


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


# Without the packages of an extra, an error names it, and local files need none of them.


_PROGRAM = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None  # importing it is an error then
sys.argv = ["weightctl", *sys.argv[2:]]
from weightctl.__main__ import main
main()
"""
NETWORK = "obstore,hf_xet,boto3,botocore,google.auth,azure.storage.blob,huggingface_hub,requests"
# The package that is missing, a command, and the extra that the hint names. OUT is a directory.
COMMANDS = [
    ("obstore", "ls hf://org/model", "remote"),
    ("obstore", "ls https://localhost:1/model.gguf", "remote"),
    ("obstore", "ls s3://bucket/model", "remote"),
    ("obstore", "ls gs://bucket/model", "remote"),
    ("obstore", "ls az://container/model", "remote"),
    ("obstore", "ls --scan s3://bucket/model.pt", "remote"),
    ("obstore", "diff MODEL s3://bucket/model", "remote"),
    ("obstore", "verify MODEL --against hf://org/model", "remote"),
    ("obstore", "convert s3://bucket/model OUT/out.gguf", "remote"),
    ("obstore", "convert MODEL OUT/out.gguf --quant Q4_K --imatrix s3://bucket/matrix", "remote"),
    ("obstore", "convert MODEL OUT/out.gguf --quant s3://bucket/recipe.toml", "remote"),
    ("obstore", "convert MODEL s3://bucket/out.gguf", "remote"),
    ("obstore", "shard s3://bucket/model OUT/ranks --tp 2", "remote"),
    ("hf_xet", "convert MODEL hf://org/model", "hub"),
    ("boto3", "convert MODEL s3://bucket/out.gguf", "s3"),
    ("boto3", "shard MODEL s3://bucket/ranks --tp 2", "s3"),
    ("google.auth", "convert MODEL gs://bucket/out.gguf", "gs"),
    ("boto3", "convert MODEL gs://bucket/out.gguf", "gs"),
    ("azure.storage.blob", "convert MODEL az://container/out.gguf", "az"),
]


# Of the commands that need the same package, those that look for it at different places.
USUAL = {"ls hf://org/model", "diff MODEL s3://bucket/model", "convert MODEL s3://bucket/out.gguf"}


INSTALL = {
    "hub": "`pip install 'hf-xet>=1.8' 'obstore>=0.12'`",
    "remote": "`pip install 'obstore>=0.12'`",
    "s3": "`pip install 'boto3>=1.40' 'obstore>=0.12'`",
    "gs": "`pip install 'boto3>=1.40' 'google-auth[requests]>=2.38' 'obstore>=0.12'`",
    "az": "`pip install 'azure-identity>=1.17' 'azure-storage-blob>=12.20' 'obstore>=0.12'`",
}


def run_without(packages: str, command: str, places: dict[str, Path]) -> Completed:
    """Run weightctl in a process that cannot import some packages."""
    words = command.split()
    for name, path in places.items():
        words = [word.replace(name, str(path)) for word in words]
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, packages, *words],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("package", "command", "extra"),
    usual([row for row in COMMANDS if row[1] in USUAL], COMMANDS),
)
def test_a_missing_package_is_named_with_its_extra(
    package: str, command: str, extra: str, tmp_path: Path
) -> None:
    (out := tmp_path / "out").mkdir()
    done = run_without(package, command, {"MODEL": TINY, "OUT": out})
    assert done.returncode == 2
    assert f"the package {package}" in done.stderr
    assert "which is not installed" in done.stderr
    assert f"hint: install it: {INSTALL[extra]}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [*out.iterdir()]


def test_a_profile_needs_the_extra_of_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_PROFILE", "mine")
    done = run_without("boto3", "ls s3://bucket/model", {})
    assert done.returncode == 2
    assert INSTALL["s3"] in done.stderr
    assert "Traceback" not in done.stderr


LOCAL = [
    "ls file://MODEL",
    "convert MODEL OUT/out.gguf --quant Q8_0",
    "verify MODEL --check finite",
    "ls MODEL",
    "diff MODEL MODEL --values",
    "shard MODEL OUT/ranks --tp 2",
]


@pytest.mark.parametrize("command", usual(LOCAL[:3], LOCAL))
def test_local_files_need_no_extra(command: str, tmp_path: Path) -> None:
    done = run_without(NETWORK, command, {"MODEL": TINY, "OUT": tmp_path})
    assert done.returncode == 0, done.stderr
