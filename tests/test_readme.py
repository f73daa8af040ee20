"""The README shows what really happens. `python tests/test_readme.py` writes its output anew."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from weightctl.cli import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Completed

    Run = Callable[..., Completed]

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
CONSOLE = re.compile(r"```console\n(.*?)```\n", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```\n", re.DOTALL)
PROGRAM = re.compile(r"```py\n(.*?)```\n\n```text\n\$ (.*?)\n(.*?)```\n", re.DOTALL)
TIMES = re.compile(r"^\d+\.\d s, .*/s$", re.MULTILINE)
EXAMPLE = re.compile(r"^\$ (.*)$", re.MULTILINE)


def shell(command: str, folder: Path) -> str:
    """Run a command as the README's reader does: in a shell, piped, from the repository's root."""
    if not (folder / "fixtures").exists():
        (folder / "fixtures").symlink_to(ROOT / "fixtures")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"PATH": path, "COLUMNS": "100"},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def played(session: str, folder: Path) -> str:
    """Return a session with the output that its commands give now."""
    return "".join(f"$ {command}\n{shell(command, folder)}" for command in EXAMPLE.findall(session))


def printed(program: str, folder: Path) -> str:
    """Return what a Python example prints."""
    (folder / "example.py").write_text(program)
    return shell("python example.py", folder)


def said_by_all(program: str, command: str, folder: Path) -> str:
    """Return what a program of several processes prints."""
    (folder / "program.py").write_text(program)
    # Unless it is told how many threads each may have, torchrun tells that it has chosen.
    return shell(f"OMP_NUM_THREADS=1 {command}", folder)


def without_times(text: str) -> str:
    return TIMES.sub("(time)", text)


def test_the_session_is_what_the_commands_print(tmp_path: Path) -> None:
    sessions = CONSOLE.findall(README.read_text())
    assert len(sessions) == 12
    for session in sessions:
        assert without_times(played(session, tmp_path)) == without_times(session)


def test_the_python_examples_print_what_they_say(tmp_path: Path) -> None:
    examples = PYTHON.findall(README.read_text())
    assert len(examples) == 9
    for program, output in examples:
        assert printed(program, tmp_path) == output


@pytest.mark.long
def test_the_program_of_several_processes_prints_what_it_says(tmp_path: Path) -> None:
    ((program, command, output),) = PROGRAM.findall(README.read_text())
    assert said_by_all(program, command, tmp_path) == output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_the_readme(name: str, weightctl: Run) -> None:
    shown = weightctl(name, "--help").stdout
    options = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", shown.partition("Examples:")[0]))
    page = README.read_text()
    section = page.partition(f"### `weightctl {name} ")[2].partition("\n### ")[0]
    general = page.partition("## Commands")[2].partition("\n### ")[0]
    assert {option for option in options - {"--help"} if option not in section + general} == set()
    unknown = set(re.findall(r"`(--[a-z][\w-]*)", section)) - options
    assert unknown == set()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = README.read_text()
        for session in CONSOLE.findall(page):
            page = page.replace(session, played(session, Path(folder)))
        for program, command, output in PROGRAM.findall(page):
            said = said_by_all(program, command, Path(folder))
            page = page.replace(f"$ {command}\n{output}```", f"$ {command}\n{said}```")
        for program, output in PYTHON.findall(page):
            anew = printed(program, Path(folder))
            block = "```python\n{}```\n\n```text\n{}```\n"
            page = page.replace(block.format(program, output), block.format(program, anew))
        README.write_text(page)


if __name__ == "__main__":
    main()
