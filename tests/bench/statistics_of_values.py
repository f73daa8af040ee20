"""`weightctl stat` over 2.2 GB of bf16, against reading the file with `cat`.

Run with `python tests/bench/statistics_of_values.py` (`--size 100MB` for less). The page cache is
warm, both sides take turns, and medians of whole processes are printed, with the peak memory.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from memory import COMMAND
from pipeline import warm

from schemes import write_matrices
from weightctl.text.sizes import parse_size

MOST_RATIO, MOST_PEAK = 2.0, 300_000_000


def measure_stat(path: Path, threads: int) -> tuple[float, int]:
    """Return the seconds and the peak bytes of `weightctl stat`."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "stat", path, "-j", str(threads)],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - start
    return seconds, int(done.stderr.split()[-2]) * 1024


def measure_cat(path: Path) -> float:
    """Return the seconds of `cat FILE > /dev/null`."""
    start = time.perf_counter()
    subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="2.2GB", help="of the input")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_matrices(Path(folder) / "in", parse_size(arguments.size))
        warm(path)
        pairs = [
            (measure_cat(path), measure_stat(path, arguments.threads))
            for _ in range(arguments.repeats)
        ]
        cat = statistics.median(each for each, _ in pairs)
        seconds = statistics.median(each for _, (each, _) in pairs)
        peak = max(peak for _, (_, peak) in pairs)
        print(
            f"{path.stat().st_size / 1e9:.2f} GB of bf16, {arguments.threads} threads: stat "
            f"{seconds:.2f} s, cat {cat:.2f} s: {seconds / cat:.2f} (target {MOST_RATIO}), peak "
            f"{peak / 1e6:.0f} MB (target {MOST_PEAK / 1e6:.0f} MB)"
        )


if __name__ == "__main__":
    main()
