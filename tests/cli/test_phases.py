"""The line that names the current phase, before a progress bar or the output is shown."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save

from commands import TINY
from commands import run_command as weightctl
from terminal import read_terminal
from weightctl.system.phases import begin_phase, listening

if TYPE_CHECKING:
    from pathlib import Path


_PARTS = 300


@pytest.fixture(scope="module")
def many_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of so many files that their headers take a while."""
    folder = tmp_path_factory.mktemp("many")
    names = [f"model-{part + 1:05d}-of-{_PARTS:05d}.safetensors" for part in range(_PARTS)]
    for part, name in enumerate(names):
        (folder / name).write_bytes(save({f"t.{part}": np.zeros(1, np.float32)}))
    weight_map = {f"t.{part}": name for part, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def shown_on_a_terminal(*arguments: str, cwd: Path) -> tuple[str, str]:
    """Return what Python writes to a pipe as stdout, and to a terminal as stderr."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=theirs,
        cwd=cwd,
        text=True,
    )
    os.close(theirs)
    out, _ = process.communicate()
    return out, read_terminal(ours)


SLOW = """
import sys, time
from weightctl.cli.progress import phase_line
from weightctl.cli.render import note, show_text
from weightctl.system.phases import begin_phase

with phase_line(quiet="quiet" in sys.argv):
    begin_phase("reading header 1 of 2")
    time.sleep(1.5)
    begin_phase("reading header 2 of 2")
    note("one thing")
    show_text("output\\n")
"""


def test_a_phase_that_lasts_is_named_and_erased_before_anything_else(tmp_path: Path) -> None:
    out, shown = shown_on_a_terminal("-c", SLOW, cwd=tmp_path)
    assert out == "output\n"
    assert shown == (
        "\x1b[2K\rreading header 1 of 2..."
        "\x1b[2K\rreading header 2 of 2..."
        "\x1b[2K\rnote: one thing\r\n"
    )


def test_a_command_without_a_phase_also_shows_that_it_runs(tmp_path: Path) -> None:
    slow = SLOW.replace("begin_phase(", "str(")
    assert shown_on_a_terminal("-c", slow, cwd=tmp_path)[1] == (
        "\x1b[2K\rstarting...\x1b[2K\rnote: one thing\r\n"
    )


def test_quiet_names_no_phase(tmp_path: Path) -> None:
    assert shown_on_a_terminal("-c", SLOW, "quiet", cwd=tmp_path)[1] == "note: one thing\r\n"


def test_headers_of_many_files_are_counted(many_files: Path) -> None:
    from weightctl import open_weights

    phases: list[str] = []
    with listening(phases.append):
        open_weights(many_files)
    assert phases == [f"reading header {part + 1} of {_PARTS}" for part in range(_PARTS)]


@pytest.mark.parametrize("command", ["ls . --flat -q", "diff . . -q"])
def test_a_quiet_command_names_no_phase(many_files: Path, command: str) -> None:
    shown = shown_on_a_terminal("-m", "weightctl", *command.split(), cwd=many_files)[1]
    assert shown == ""


def test_a_pipe_gets_no_phase(many_files: Path) -> None:
    assert weightctl("ls", ".", "--flat", cwd=many_files).stderr == ""


def test_the_innermost_listener_is_called_with_each_phase() -> None:
    outer: list[str] = []
    inner: list[str] = []
    begin_phase("nobody listens")
    with listening(outer.append):
        begin_phase("one")
        with listening(inner.append):
            begin_phase("two")
        begin_phase("three")
    assert (outer, inner) == (["one", "three"], ["two"])


def test_a_conversion_names_its_phases_in_order(tmp_path: Path) -> None:
    from weightctl import convert

    phases: list[str] = []
    with listening(phases.append):
        convert(TINY, tmp_path / "out.gguf", dry_run=True)
    assert phases == [
        "reading header 1 of 1",
        "converting the tokenizer",
        "planning the conversion",
    ]


def test_a_verification_names_its_phases() -> None:
    from weightctl.verify.checking import verify_request
    from weightctl.verify.request import Request
    from weightctl.verify.subject import Subject

    phases: list[str] = []
    with listening(phases.append):
        verify_request(Request(subject=Subject(TINY)), ["forward"])
    assert {"reading the tokenizer", "building the model"} <= {*phases}


# The progress bar of a run with workers, on a terminal.


RUN = """
import time
from weightctl.cli.progress import progress_bar
from weightctl.write.executors import WORKERS, WorkerCounts

with progress_bar(1_590_000_000_000, "converting", quiet=False, has_workers=True) as advance:
    for done in (100, 555):
        WORKERS.counts = WorkerCounts(1758, done, 5, 10)
        advance(300_000_000_000)
        time.sleep(0.2)
"""


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_tasks_that_are_done_lost_and_copied_are_on_the_line_of_the_bar(columns: int) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", RUN],
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)},
    )
    os.close(theirs)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read_terminal(ours))
    assert process.wait() == 0
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", shown) if line.strip()]
    last = lines[-1]
    assert re.match(r" 38%", last)
    assert re.search(r"/s \d:\d\d:\d\d 555/1,758 tasks, 5 lost, 10 copied$", last)
    assert all(len(line) <= columns and "%" in line for line in lines)
