"""Conversions, each a process of its own, that kill themselves before a chosen change of a name.

They are forked from one process that has imported what they need: each takes some milliseconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_PROGRAM = """
import json, os, signal, sys, traceback
import numpy, weightctl.codecs, weightctl.write.save
from weightctl import Plan, open_weights
from weightctl.errors import OutputError
from weightctl.write.save import save
from weightctl.plan.arrangement import split

def kill_at(wanted):
    seen = 0
    def count(event, _):
        nonlocal seen
        if event not in ("os.rename", "os.link", "os.remove"):
            return
        seen += 1
        if seen == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)

for line in sys.stdin:
    source, out, most, force, change = json.loads(line)
    process = os.fork()
    if not process:
        try:
            plan = Plan.copy(open_weights(source), "gguf" if ".gguf" in out else "safetensors")
            plan = split(plan, most)
            if change is not None:
                kill_at(change)
            save(plan, out, force=force, threads=1)
            os._exit(0)
        except OutputError:
            os._exit(2)
        except BaseException:
            traceback.print_exc()
            os._exit(99)
    _, status = os.waitpid(process, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class KilledSaves:
    """Saves a model as a set of files, in a process that is killed where that is asked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(
        self, source: Path, out: Path, most: int, *, force: bool, change: int | None = None
    ) -> int:
        """Save in files of at most so many bytes; return the exit code, as `weightctl` has it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(source), str(out), most, force, change]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def killed_saves() -> Generator[KilledSaves, None, None]:
    """Start the process that the runs are forked from."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # what has threads is not forked safely
    ) as process:
        yield KilledSaves(process)
        assert process.stdin is not None
        process.stdin.close()
