"""The progress bar of a run with workers, on a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from terminal import read_terminal

RUN = """
import time
from weightctl.cli.progress import progress_bar
from weightctl.write.executors.counts import WORKERS, WorkerCounts

with progress_bar(1_590_000_000_000, quiet=False, has_workers=True) as advance:
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
