"""The command line, run in the process of the test or in one of its own, and tensors of plans."""

from __future__ import annotations

import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn
from unittest.mock import patch

from weightctl.errors import WeightctlError
from weightctl.storage.traffic import TRAFFIC, TrafficCounts
from weightctl.system.elapsed import start_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from typer.testing import Result


# The command line, run in the process of the test or in one of its own.
# A start of Python and its imports cost more than most commands do, so tests call `run_command`.
# What a process has to itself (signals, the state of modules, the moment it ends) is tested with
# `start_command`.

ROOT = Path(__file__).parents[2]
Completed = subprocess.CompletedProcess[str]
# The width that tests see, where they do not set another.
_SURROUNDINGS = {"COLUMNS": "100", "FORCE_COLOR": ""}


def start_command(*arguments: str | Path, cwd: Path = ROOT, **environment: str) -> Completed:
    """Run `weightctl` in a process of its own, without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "weightctl", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | _SURROUNDINGS | environment,
    )


def run_command(
    *arguments: str | Path, cwd: Path = ROOT, is_merged: bool = False, **environment: str
) -> Completed:
    """Run `weightctl` in this process, without a terminal.

    Signals, the environment and the folder are as before afterwards; modules keep their state. With
    `is_merged`, stdout has both streams.
    """
    words = ["weightctl", *map(str, arguments)]
    return run_here(_run_main, words, cwd, environment, is_merged=is_merged)


def list_completions(folder: Path, typed: str) -> list[str]:
    """Return what weightctl offers to a shell for a line."""
    done = run_command(
        cwd=folder,
        _WEIGHTCTL_COMPLETE="complete_bash",
        COMP_WORDS=typed,
        COMP_CWORD=str(typed.count(" ")),
    )
    assert done.returncode == 0
    assert done.stderr == ""
    return done.stdout.split()


def run_program(path: Path, **environment: str) -> Completed:
    """Run a Python file in this process, in its folder; stdout has both streams."""

    def execute() -> int:
        runpy.run_path(str(path), run_name="__main__")
        return 0

    return run_here(execute, [str(path)], path.parent, environment, is_merged=True)


def run_here(
    function: Callable[[], int],
    words: list[str],
    cwd: Path,
    environment: dict[str, str],
    *,
    is_merged: bool = False,
) -> Completed:
    """Call a function as the main function of a process with these arguments."""
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8") as err,
        open(os.devnull) as nothing,
    ):
        with patch.dict(os.environ, _SURROUNDINGS | environment):
            code = _run_with(function, words, cwd, nothing, out, out if is_merged else err)
        return Completed(words, code, _read(out), _read(err))


def run_on_terminal(
    terminal: int, *arguments: str | Path, cwd: Path = ROOT, **environment: str
) -> int:
    """Run `weightctl` in this process, on an open terminal; return its exit code."""
    words = ["weightctl", *map(str, arguments)]
    with (
        patch.dict(os.environ, {"TERM": "xterm-256color"} | environment),
        open(terminal, "r+b", buffering=0, closefd=False) as stream,
    ):
        for name in {"NO_COLOR", "FORCE_COLOR", "COLUMNS"} - environment.keys():
            os.environ.pop(name, None)
        return _run_with(_run_main, words, cwd, stream, stream, stream)


def _run_with(function: Callable[[], int], words: list[str], cwd: Path, *streams: IO[Any]) -> int:
    """Call a function as the main function, with its three standard streams."""
    stdin, stdout, stderr = streams
    with (
        patch.object(sys, "argv", words),
        _inside(cwd),
        _kept_signals(),
        _connected(0, "stdin", stdin),
        _connected(1, "stdout", stdout),
        _connected(2, "stderr", stderr),
    ):
        return _end(function)


def _run_main() -> NoReturn:
    _start_counts()
    from weightctl.cli import main  # tests of codecs run where Typer is not installed

    main()


def _start_counts() -> None:
    """Let time and traffic be those of one command."""
    start_clock()
    vars(TRAFFIC).update(TrafficCounts()._asdict())


def _end(function: Callable[[], int]) -> int:
    try:
        return function()
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except KeyboardInterrupt:
        return 130
    except BaseException:  # noqa: BLE001  # as at the end of a process
        traceback.print_exc()
        return 1


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


@contextmanager
def _inside(directory: Path) -> Generator[None, None, None]:
    before = os.open(".", os.O_RDONLY)
    os.chdir(directory)
    try:
        yield
    finally:
        os.fchdir(before)
        os.close(before)


@contextmanager
def _kept_signals() -> Generator[None, None, None]:
    """Restore handlers of signals and the limit of open files, which the command sets."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def _connected(number: int, name: str, file: IO[Any]) -> Generator[None, None, None]:
    """Connect a standard stream, and its descriptor, with a file."""
    if name != "stdin":
        getattr(sys, name).flush()
    before = os.dup(number)
    os.dup2(file.fileno(), number)
    mode = "r" if name == "stdin" else "w"
    try:
        with (
            open(number, mode, encoding="utf-8", closefd=False) as ours,
            patch.object(sys, name, ours),
        ):
            yield
    finally:
        os.dup2(before, number)
        os.close(before)


# The command `shard` without the time that a process takes to start.

TINY = ROOT / "fixtures" / "tiny-llama"
O_PROJ = "model.layers.0.self_attn.o_proj.weight"


def asked(*arguments: str | Path) -> Result:
    """Return what becomes of the command, without the time that a process takes to start."""
    from typer.testing import CliRunner

    from weightctl.cli.shard import app

    _start_counts()
    return CliRunner().invoke(app, list(map(str, arguments)))


def document(*arguments: str | Path) -> dict[str, Any]:
    done = asked(*arguments, "--json")
    assert done.exit_code == 0, done.exception
    message: dict[str, Any] = json.loads(done.stdout)
    return message


def refusal(*arguments: str | Path) -> str:
    """Return what the command says where it refuses something: the error and its hint."""
    error = asked(*arguments).exception
    assert isinstance(error, WeightctlError)
    return str(error)
