"""Conversions in separate processes, to which a signal is sent at a chosen moment.

They are forked from one process that has imported what a conversion needs, so that hundreds take
seconds; from `weightctl.__main__.main` on, each is the same as a command in a shell.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import signal
    from collections.abc import Generator
    from pathlib import Path

_PROGRAM = """
import json, os, signal, sys, time, traceback
import numpy, weightctl.cli.convert, weightctl.cli.shard, weightctl.codecs, weightctl.write.save
import weightctl.cli.edit, weightctl.editing.edit, weightctl.storage.completing_edits
import weightctl.formats.gguf, weightctl.formats.safetensors, weightctl.kernels._native
from weightctl.__main__ import main
from weightctl.write import journal

limit = int(sys.argv[2])
if sys.argv[1]:
    journal.BEGIN_AFTER = float(sys.argv[1])

# The calls that a run can be struck at, those that begin what is of interest, and when: before a
# call, behind it, or both. A signal that comes during a call is answered behind it.
CALLS = {
    "names": (
        {"open", "mkdir", "rmdir", "link", "unlink", "rename", "replace", "flock", "fsync",
         "listdir"},
        {"flock", "mkdir"},
        {"c_call", "c_return", "c_exception"},
    ),
    "writes": (
        {"unlink", "rename", "replace", "fsync", "pwrite", "ftruncate", "copy_file_range"},
        {"flock"},
        {"c_call"},
    ),
    "locks": (
        {"acquire", "release", "__enter__", "__exit__", "_is_owned", "put", "get", "append",
         "popleft", "remove"},
        {"start_new_thread"},
        {"c_return"},
    ),
}

def strike_at(calls, wanted, number, struck):
    seen = 0
    started = False
    struck_at, first, events = CALLS[calls]
    def look(frame, event, function):
        nonlocal seen, started
        if event in events:
            started = started or function.__name__ in first
            seen += started and function.__name__ in struck_at
            if started and seen == wanted and function.__name__ in struck_at:
                sys.setprofile(None)
                os.write(struck, b"x")
                signal.raise_signal(number)
    sys.setprofile(look)

# A signal that comes too early waits for the run to begin.
ENDING = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
for line in sys.stdin:
    arguments, number, seconds, calls, call, errors = json.loads(line)
    watch, struck = os.pipe()
    started = time.monotonic()
    process = os.fork()
    if not process:
        os.close(watch)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv = ["weightctl", *arguments]
        try:
            signal.alarm(limit)  # nothing waits for ever
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            if call is not None:
                strike_at(calls, call, number, struck)
            main()
        except KeyboardInterrupt:  # it came before the program's own first line
            os._exit(130)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(99)
    os.close(struck)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(process, number)
    _, status = os.waitpid(process, 0)
    lasted = time.monotonic() - started
    was_struck = bool(os.read(watch, 1))
    os.close(watch)
    print(json.dumps([os.waitstatus_to_exitcode(status), lasted, was_struck]), flush=True)
"""


class Ended(NamedTuple):
    """The end of a run; `was_struck` is only set for signals at a system call."""

    code: int
    seconds: float
    was_struck: bool
    errors: str


class Strikes:
    """Runs `weightctl` with arguments, and sends it a signal if requested."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process = process
        self._errors = errors

    def run(
        self,
        *arguments: str | Path,
        number: signal.Signals | None = None,
        seconds: float | None = None,
        calls: str = "names",
        call: int | None = None,
    ) -> Ended:
        """Send the signal after some seconds, or at a call of one kind in the main thread.

        The calls are system calls on file names (before and after them), those that write (before
        them), or calls of locks and the code that they guard (after them).
        """
        given = [list(map(str, arguments)), number, seconds, calls, call, str(self._errors)]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(given) + "\n")
        self._process.stdin.flush()
        code, lasted, was_struck = json.loads(self._process.stdout.readline())
        return Ended(code, lasted, was_struck, self._errors.read_text())


@contextmanager
def strikes(
    scratch: Path, *, begin_after: float | None = None, limit: int = 5
) -> Generator[Strikes, None, None]:
    """Start the process that the runs are forked from.

    Journals begin after some seconds, if the number is given. A run of more than `limit` seconds is
    ended.
    """
    # A process with threads cannot be forked safely.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            _PROGRAM,
            "" if begin_after is None else str(begin_after),
            str(limit),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        yield Strikes(process, scratch / "errors.txt")
        assert process.stdin is not None
        process.stdin.close()
