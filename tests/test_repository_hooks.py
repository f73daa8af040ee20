"""The GitHub action and the pre-commit hooks of this repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from each import each

ROOT = Path(__file__).parents[1]
HOOKS = ROOT / ".pre-commit-hooks.yaml"
# `pipx run --spec PATH weightctl ...`, which would install packages.
PIPX = f'#!/bin/sh\nshift 4\nexec "{sys.executable}" -P -m weightctl "$@"\n'


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def run(*words: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=cwd, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


@pytest.fixture
def repository(tiny_llama: Path, tmp_path: Path) -> Path:
    """Return a repository with a model, and with the hooks in its configuration."""
    hooks = read(HOOKS)
    for hook in hooks:
        # pre-commit would install packages for a hook in Python.
        hook["language"] = "system"
        del hook["require_serial" if "require_serial" in hook else "additional_dependencies"]
        hook["entry"] = hook["entry"].replace("weightctl", f"{sys.executable} -P -m weightctl")
    hooks[1]["args"] = ["model"]
    folder = tmp_path / "repository"
    shutil.copytree(tiny_llama, folder / "model")
    (folder / "setup.py").write_text("print()\n")
    (folder / ".pre-commit-config.yaml").write_text(
        yaml.dump({"repos": [{"repo": "local", "hooks": hooks}]})
    )
    run("git", "init", "--quiet", cwd=folder)
    run("git", "add", ".", cwd=folder)
    return folder


def run_hooks(repository: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "pre_commit", "run", "--all-files"]
    return run(*words, cwd=repository, PRE_COMMIT_HOME=str(repository.parent / "cache"))


def test_the_manifest_of_hooks_is_valid() -> None:
    done = run(sys.executable, "-m", "pre_commit", "validate-manifest", HOOKS, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    check = next(hook for hook in read(HOOKS) if hook["id"] == "weightctl-check")
    assert check["additional_dependencies"] == extras["optional-dependencies"]["check"]


def test_hooks_pass_a_good_model(repository: Path) -> None:
    done = run_hooks(repository)
    assert (done.returncode, done.stdout.count("Passed")) == (0, 2), done.stdout + done.stderr


def test_hooks_find_code_and_wrong_configs(repository: Path) -> None:
    shutil.copy(ROOT / "fixtures" / "attack.pt", repository)
    config = repository / "model" / "config.json"
    config.write_text(
        config.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 4')
    )
    run("git", "add", ".", cwd=repository)
    done = run_hooks(repository)
    assert (done.returncode, done.stdout.count("Failed")) == (1, 2), done.stdout + done.stderr
    assert "attack.pt: posix.system  dangerous" in done.stdout
    assert "setup.py" not in done.stdout


@each(
    "command, path, code, text",
    [
        ("scan", "fixtures/attack.pt", 1, "posix.system  dangerous"),
        ("scan", "fixtures/tiny-llama", 0, "no pickles"),
        ("check", "fixtures/tiny-llama", 0, "no findings"),
        ("convert", "fixtures/tiny-llama", 2, "command must be scan or check"),
    ],
)
def test_the_action_runs_commands(
    command: str, path: str, code: int, text: str, tmp_path: Path
) -> None:
    action = read(ROOT / "action.yml")
    (step,) = action["runs"]["steps"]
    inputs = {"path": path, "command": command, "sarif": ""}
    assert inputs.keys() == action["inputs"].keys()
    values = {
        name: inputs[stated.removeprefix("${{ inputs.").removesuffix(" }}")]
        for name, stated in step["env"].items()
    }
    pipx = tmp_path / "pipx"
    pipx.write_text(PIPX)
    pipx.chmod(0o755)
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    found = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run(*words, cwd=ROOT, PATH=found, GITHUB_ACTION_PATH=str(ROOT), **values)
    assert done.returncode == code, done.stdout + done.stderr
    assert text in done.stdout + done.stderr
