"""Run `weightctl ls` on many files in this one process, and print what each said and cost."""

from __future__ import annotations

import io
import json
import resource
import sys
import time
from contextlib import redirect_stderr, redirect_stdout

from weightctl.cli import COMMANDS, main
from weightctl.formats import FORMATS
from weightctl.system.registry import load


def measured(path: str) -> dict[str, object]:
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["weightctl", "ls", path]
    code = None
    before, started = peak(), time.process_time()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    return {
        "path": path,
        "code": code,
        "stdout": out.getvalue(),
        "stderr": err.getvalue(),
        "seconds": time.process_time() - started,
        "bytes": peak() - before,
    }


def peak() -> int:
    """Return the most memory that this process has ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    for module in (COMMANDS["ls"], *(line.module for line in FORMATS.values())):
        load(module)  # or the first file would pay for it
    print(json.dumps([measured(path) for path in sys.argv[1:]]))
