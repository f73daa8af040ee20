"""Weights converted per second by one thread, without and with the loss measured.

Run with `python tests/bench/conversion.py`. The pieces are those that the executor cuts: 262,144
normal numbers of standard deviation 0.02, like weights. Both ways take turns; medians are printed.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.dtype.types import parse_encoding

COUNT = 1 << 18
# The least share, in percent, of the speed without measuring that should be left with it.
TARGETS = {
    ("F32", "BF16"): 20,
    ("F32", "F16"): 20,
    ("BF16", "F16"): 20,
    ("F16", "BF16"): 20,
    ("BF16", "F8_E4M3"): 20,
    ("F32", "F8_E5M2"): 20,
    ("BF16", "F32"): 99,
    ("F16", "F32"): 99,
    ("BF16", "Q8_0"): 50,
    ("F16", "Q5_0"): 50,
    ("BF16", "Q4_K"): 90,
}


def rates(source: str, target: str, seconds: float) -> tuple[float, float]:
    """Return weights per second, without and with the loss measured."""
    before, after = parse_encoding(source), parse_encoding(target)
    numbers = np.random.default_rng(0).standard_normal((1, COUNT), np.float32) * np.float32(0.02)
    raw = transcode(numbers.view(np.uint8), ENCODINGS["F32"], before).raw
    times: dict[bool, list[float]] = {False: [], True: []}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[True]) < 2:
        for measure, taken in times.items():
            start = time.perf_counter()
            transcode(raw, before, after, measure=measure)
            taken.append(time.perf_counter() - start)
    return COUNT / statistics.median(times[False]), COUNT / statistics.median(times[True])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each conversion")
    arguments = parser.parse_args()
    print("million weights per second, one thread:")
    for (source, target), least in TARGETS.items():
        without, measured = rates(source, target, arguments.seconds)
        print(
            f"  {source} -> {target}: {without / 1e6:.0f}, measured {measured / 1e6:.0f}: "
            f"{100 * measured / without:.0f} % (target {least})"
        )


if __name__ == "__main__":
    main()
