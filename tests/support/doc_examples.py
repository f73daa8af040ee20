"""The examples of a page: console sessions and Python programs, and their current output."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from commands import run_command, run_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Failure", "Played", "has_examples", "play", "play_processes", "run", "without_times"]

_EXAMPLE = re.compile(
    r"^```console\n(?P<session>.*?)^```\n"
    r"|^```python\n(?P<program>.*?)^```\n\n```text\n(?P<output>.*?)^```\n",
    re.DOTALL | re.MULTILINE,
)
_PROCESSES = re.compile(
    r"^```py\n(?P<program>.*?)^```\n\n```text\n\$ (?P<command>.*?)\n(?P<output>.*?)^```\n",
    re.DOTALL | re.MULTILINE,
)
# The directory of readers, in messages that show a full path.
_HOME = "/home/user/"
_SURROUNDINGS = {"COLUMNS": "100"}
_TIMES = re.compile(r"^\d+\.\d+ s, [\d.]+ .?B/s$", re.MULTILINE)


class Failure(NamedTuple):
    """A command of a page whose exit code was not 0."""

    command: str
    code: int
    output: str


class Played(NamedTuple):
    """A page with the output that its examples print now, and the commands that failed."""

    text: str
    failures: tuple[Failure, ...]


def has_examples(text: str) -> bool:
    """Whether a page has examples that `play` runs."""
    return _EXAMPLE.search(text) is not None


def without_times(text: str) -> str:
    """Return a text without the parts that differ in each run."""
    return _TIMES.sub("(time)", text)


def run(command: str, folder: Path) -> tuple[str, int]:
    """Run a command as a reader does, with a pipe for its output; return output and exit code.

    A line with `weightctl` alone, or in front of a pipe, runs in this process; others in a shell.
    """
    ours, _, rest = command.partition(" | ")
    if (words := _split_plain(ours)) is None:
        return _run_in_shell(command, folder)
    done = run_command(*words, cwd=folder, is_merged=not rest)
    output, code = done.stdout, done.returncode
    if rest:
        shown, after = _run_in_shell(rest, folder, done.stdout)
        output, code = done.stderr.replace(f"{folder}/", _HOME) + shown, after or code
    return output.replace(f"{folder}/", _HOME), code


def _split_plain(command: str) -> list[str] | None:
    """Return the arguments of `weightctl`; None for another program or a shell's own characters."""
    words = list(shlex.shlex(command, punctuation_chars=True))
    unquoted = "".join(word for word in words if word[0] not in "'\"")
    if words[0] != "weightctl" or re.search(r"[<>;&|$`*?~{}()\\#\[]", unquoted):
        return None
    return shlex.split(command)[1:]


def _run_in_shell(command: str, folder: Path, given: str | None = None) -> tuple[str, int]:
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=folder,
        input=given,
        # In another language of the system, `ls` would sort names differently.
        env=os.environ | _SURROUNDINGS | {"PATH": path, "LC_ALL": "C.UTF-8"},
    )
    return done.stdout.replace(f"{folder}/", _HOME), done.returncode


def play(text: str, folder: Path, *, keep_times: bool = True) -> Played:
    """Run all examples of a page, one after another, in a folder.

    With `keep_times`, output that differs only in times is not changed.
    """
    failures: list[Failure] = []

    def renew(match: re.Match[str]) -> str:
        old = match.group()
        if match["program"] is None:
            made = "".join(_play_session(match["session"], folder, failures))
            new = f"```console\n{made}```\n"
        else:
            (folder / "example.py").write_text(match["program"])
            done = run_program(folder / "example.py", **_SURROUNDINGS)
            output = done.stdout.replace(f"{folder}/", _HOME)
            if done.returncode:
                failures.append(Failure("python example.py", done.returncode, output))
            new = f"```python\n{match['program']}```\n\n```text\n{output}```\n"
        same = without_times(old) == without_times(new)
        return old if same and keep_times else new

    made = _EXAMPLE.sub(renew, text)
    return Played(made, tuple(failures))


def play_processes(text: str, folder: Path) -> Played:
    """Run the examples of a page that are programs with several processes."""
    failures: list[Failure] = []

    def renew(match: re.Match[str]) -> str:
        (folder / "program.py").write_text(match["program"])
        # The module is found where the script is in the path of another environment. torchrun
        # reports its choice of threads, unless one is made.
        command = re.sub(
            "^torchrun", f"{sys.executable} -m torch.distributed.run", match["command"]
        )
        output = _run(f"OMP_NUM_THREADS=1 {command}", folder, failures)
        block = f"```text\n$ {match['command']}\n{output}```\n"
        return f"```py\n{match['program']}```\n\n{block}"

    made = _PROCESSES.sub(renew, text)
    return Played(made, tuple(failures))


def _play_session(session: str, folder: Path, failures: list[Failure]) -> Iterator[str]:
    for line in session.splitlines():
        if line.startswith("$ "):
            yield f"{line}\n{_run(line.removeprefix('$ '), folder, failures)}"


def _run(command: str, folder: Path, failures: list[Failure]) -> str:
    output, code = run(command, folder)
    if code:
        failures.append(Failure(command, code, output))
    return output
