"""Runs of a command, each a process of its own, whose input is made shorter while it is read.

They are forked from one process that has imported what the commands need, so that hundreds take
seconds; from `weightctl.__main__.main` on each is what the shell would start. One that maps a file
ends at once: an access to the mapping could be a signal.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from outcomes import Forks, forking

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_PROGRAM = """
import json, os, shutil, signal, sys, threading, time, traceback
import numpy, weightctl.codecs, weightctl.write.save
import weightctl.cli.ls, weightctl.cli.diff, weightctl.cli.conversion, weightctl.cli.shard
import weightctl.cli.verify
from weightctl.__main__ import main

READS = ("pread", "preadv", "copy_file_range", "sendfile", "fstat")

def truncate_at(wanted, path, size, counted):
    # Every call that reads is a moment: the file is shorter from just before it on.
    lock, seen = threading.Lock(), 0
    def watched(call):
        def read(*arguments):
            nonlocal seen
            with lock:
                seen += 1
                if seen == wanted:
                    os.truncate(path, size)
                if wanted == 0:
                    os.pwrite(counted, seen.to_bytes(8, "little"), 0)
            return call(*arguments)
        return read
    for name in READS:
        setattr(os, name, watched(getattr(os, name)))

def end_where_a_file_is_mapped(event, arguments):
    if event == "mmap.__new__" and arguments[0] != -1:
        os.write(2, b"a file was mapped\\n")
        os._exit(71)

for line in sys.stdin:
    arguments, place, errors, read, seconds, path, size = json.loads(line)
    counted = os.memfd_create("counted")
    started = time.monotonic()
    process = os.fork()
    if not process:
        os.chdir(place)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv = ["weightctl", *arguments]
        try:
            signal.alarm(120)  # nothing waits for ever
            sys.addaudithook(end_where_a_file_is_mapped)
            if read is not None:
                truncate_at(read, path, size, counted)
            main()
        except BaseException:
            traceback.print_exc()
            os._exit(70)
    if seconds is not None:
        time.sleep(seconds)
        os.truncate(os.path.join(place, path), size)
    _, status = os.waitpid(process, 0)
    taken = time.monotonic() - started
    reads = int.from_bytes(os.pread(counted, 8, 0), "little")
    os.close(counted)
    print(json.dumps([os.waitstatus_to_exitcode(status), reads, taken]), flush=True)
"""


class Outcome(NamedTuple):
    """The exit code of a run, its stderr, and the number and time of its reads."""

    code: int
    stderr: str
    reads: int
    seconds: float


class Runner(NamedTuple):
    """Runs commands in forks of one process."""

    forks: Forks

    def run(
        self,
        arguments: list[str],
        place: Path,
        *,
        read: int | None = None,
        seconds: float | None = None,
        victim: str = "",
        size: int = 0,
    ) -> Outcome:
        """Run a command in a directory.

        `victim` is truncated to `size` bytes just before read number `read`, or after `seconds`.
        """
        errors = place.with_name(place.name + ".stderr")
        code, reads, taken = self.forks.ask(
            arguments, str(place), str(errors), read, seconds, victim, size
        )
        return Outcome(code, errors.read_text(), reads, taken)


@contextmanager
def runner() -> Generator[Runner]:
    """Start the process that the runs are forked from."""
    with forking(_PROGRAM, COLUMNS="100") as forks:
        yield Runner(forks)
