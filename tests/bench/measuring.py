"""What the benches share: their arguments, and how commands and copies are measured."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from weightctl.text.sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

# The command, and after it the peak that the kernel has seen of this process alone (what `wait`
# reports would count the parent's too).
COMMAND = """
import sys
from weightctl.cli import main
try: main()
finally:
    with open("/proc/self/status") as status:
        print(next(line for line in status if line.startswith("VmHWM")), file=sys.stderr)
"""


def make_parser(
    description: str | None,
    *,
    size: str = "",
    repeats: int = 0,
    threads: int = 0,
    folder: bool = False,
) -> argparse.ArgumentParser:
    """Return a parser with those of the usual options that a bench has, by their defaults."""
    parser = argparse.ArgumentParser(description=description)
    if size:
        parser.add_argument("--size", type=parse_size, default=parse_size(size))
    if repeats:
        parser.add_argument("--repeats", type=int, default=repeats)
    if threads:
        parser.add_argument("--threads", type=int, default=threads)
    if folder:
        parser.add_argument("--folder", help="where to put the files; else a temporary folder")
    return parser


def run_measured(*arguments: str | Path, program: str = COMMAND) -> tuple[float, int]:
    """Run a command, or a program that prints its peak; return the seconds and the peak bytes."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr.decode())
    return time.perf_counter() - start, int(done.stderr.split()[-2]) * 1024


def measure(source: Path, out: Path, *arguments: str) -> tuple[float, int]:
    """Convert; return the seconds and the peak resident bytes of the process."""
    return run_measured("convert", source, out, "--force", *arguments)


def copied(path: Path) -> float:
    """Return the seconds that `cp` of a file and an fsync take."""
    copy = path.with_name("copy")
    start = time.perf_counter()
    subprocess.run(["cp", path, copy], check=True)
    with copy.open("rb") as file:
        os.fsync(file.fileno())
    seconds = time.perf_counter() - start
    copy.unlink()
    return seconds


def warm(path: Path) -> None:
    """Bring a file into the page cache, and leave nothing for the disk to do."""
    os.sync()
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 22):
            pass


def seconds_of(command: Sequence[str]) -> float:
    """Run a command; return how long the whole process took."""
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - start


def side_by_side(repeats: int, *measures: Callable[[], float]) -> list[float]:
    """Return the median of each measure; they take turns, so that all see the same machine."""
    for measured in measures:
        measured()
    rounds = [[measured() for measured in measures] for _ in range(repeats)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]
