"""Without the packages of an extra, an error names it, and local files need none of them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Completed

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
@pytest.mark.parametrize(("package", "command", "extra"), COMMANDS)
def test_a_missing_package_is_named_with_its_extra(
    package: str, command: str, extra: str, tiny_llama: Path, tmp_path: Path
) -> None:
    (out := tmp_path / "out").mkdir()
    done = run_without(package, command, {"MODEL": tiny_llama, "OUT": out})
    assert done.returncode == 2
    assert f"the package {package}" in done.stderr
    assert "which is not installed" in done.stderr
    assert f"hint: install it: `pip install 'weightctl[{extra}]'`" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [*out.iterdir()]


def test_a_profile_needs_the_extra_of_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_PROFILE", "mine")
    done = run_without("boto3", "ls s3://bucket/model", {})
    assert done.returncode == 2
    assert "weightctl[s3]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "ls MODEL",
        "ls file://MODEL",
        "diff MODEL MODEL --values",
        "convert MODEL OUT/out.gguf --quant Q8_0",
        "shard MODEL OUT/ranks --tp 2",
        "verify MODEL --check finite",
    ],
)
def test_local_files_need_no_extra(command: str, tiny_llama: Path, tmp_path: Path) -> None:
    done = run_without(NETWORK, command, {"MODEL": tiny_llama, "OUT": tmp_path})
    assert done.returncode == 0, done.stderr
