"""Programs that torchrun runs in several processes, none of which outlives its test."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# Seconds: more than any takes on a busy machine, and than torchrun takes to end its processes.
LIMIT, END = 120, 60


def torchrun(program: Path, processes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program in so many processes that meet on a free port, each with one thread."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(processes), str(program), *map(str, arguments),
    ]  # fmt: skip
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as started:
        try:
            out, err = started.communicate(timeout=LIMIT)
        except BaseException:
            # Its processes are in sessions of their own; it alone knows them.
            started.terminate()
            with suppress(subprocess.TimeoutExpired):
                started.wait(END)
            started.kill()
            raise
    return subprocess.CompletedProcess(command, started.returncode, out, err)
