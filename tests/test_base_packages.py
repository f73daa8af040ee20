"""What works with the packages that weightctl requires, without its extras."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from each import each

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
REQUIRED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
# The packages of the extra are known if metadata of weightctl is beside it.
INSTALL = r"`pip install ('weightctl\[check\]'|'gguf>=\S+' 'jinja2>=\S+' 'safetensors>=\S+')`"


def list_packages(lines: list[str]) -> Iterator[str]:
    """Yield the names of required packages, and of what they require."""
    for line in lines:
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            yield wanted.name
            yield from list_packages(distribution(wanted.name).requires or [])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with links to the required packages."""
    folder = tmp_path_factory.mktemp("site")
    for name in {*list_packages(REQUIRED)}:
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(str(package.locate_file(top)))
    return folder


def run(site: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-S", "-P", "-m", "weightctl", *map(str, words)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{site}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_weightctl_requires_few_packages() -> None:
    assert len(REQUIRED) <= 6
    assert not {"gguf", "safetensors", "torch", "requests"} & {*list_packages(REQUIRED)}


@each("quant", ["Q4_K_M", "IQ3_S"])
def test_models_are_quantized_and_converted_back(
    quant: str, site: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model.gguf"
    done = run(site, "convert", tiny_llama, out, "--quant", quant)
    assert done.returncode == 0, done.stderr
    done = run(site, "convert", out, tmp_path / "back", "--dtype", "bf16")
    assert done.returncode == 0, done.stderr
    done = run(site, "diff", tiny_llama, tmp_path / "back")
    assert "no difference" in done.stdout, done.stdout + done.stderr


def test_check_names_the_packages_that_it_did_without(site: Path, tiny_llama: Path) -> None:
    done = run(site, "check", tiny_llama)
    assert done.returncode == 0, done.stdout + done.stderr
    text = " ".join((done.stdout + done.stderr).split())
    left_out = "`safetensors.safe_open` did not read the files: not installed: "
    assert re.search(re.escape(left_out) + INSTALL, text)


def test_a_draft_of_a_family_asks_for_gguf(site: Path, tiny_llama: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for each_file in tiny_llama.iterdir():
        text = each_file.read_bytes().replace(b"self_attn.q_proj", b"attention.q_proj")
        (model / each_file.name).write_bytes(text)
    done = run(site, "ls", model, "--draft-family")
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(INSTALL, done.stderr)
