"""`weightctl stat` over 2.2 GB of bf16, against reading the file with `cat`.

Run with `python tests/bench/statistics_of_values.py` (`--size 100MB` for less). The page cache is
warm, both sides take turns, and medians of whole processes are printed, with the peak memory.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from measuring import make_parser, run_measured, warm
from schemes import write_matrices

MOST_RATIO, MOST_PEAK = 2.0, 300_000_000


def measure_cat(path: Path) -> float:
    """Return the seconds of `cat FILE > /dev/null`."""
    start = time.perf_counter()
    subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__, size="2.2GB", repeats=5, threads=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_matrices(Path(folder) / "in", arguments.size)
        warm(path)
        pairs = [
            (measure_cat(path), run_measured("stat", path, "-j", str(arguments.threads)))
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
