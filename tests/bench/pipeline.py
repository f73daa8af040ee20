"""Conversions of a llama of 2 GB against `cp` of the same bytes, and against the codecs alone.

Run with `python tests/bench/pipeline.py` (`--size 100MB` for less). Everything is on the disk when
its time ends: each conversion by its own fsync, each `cp` by one behind it. The page cache is warm,
both sides take turns, and medians are printed. What the codecs would need is measured on pieces in
memory, by as many threads, with the loss measured as `convert` does.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llama import write_llama
from measuring import copied, make_parser, measure, warm
from weightctl import open_weights
from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS, Encoding

if TYPE_CHECKING:
    import argparse

COUNT = 1 << 18
MOST_PEAK = 350_000_000
# The input, the output, what the command is told, and how often the other side's time it may take.
WORKS = {
    "safetensors to GGUF": ("safetensors", "out.gguf", (), 1.15),
    "GGUF to safetensors": ("gguf", "out.safetensors", (), 1.15),
    "safetensors to PyTorch": ("safetensors", "out.pt", (), 1.15),
    "Q8_0": ("safetensors", "out.gguf", ("--quant", "Q8_0"), 1.3),
    "Q4_K_M": ("safetensors", "out.gguf", ("--quant", "Q4_K_M"), 1.3),
}


def encoded(source: Path, out: Path, threads: int, seconds: float) -> float:
    """Return the seconds that so many threads need for nothing but the codecs' work."""
    before, after = open_weights(source).header.tensors, open_weights(out).header.tensors
    sizes = Counter[tuple[Encoding, Encoding]]()
    for name, info in before.items():
        if info.encoding != after[name].encoding:
            sizes[info.encoding, after[name].encoding] += info.size
    return sum(size / rate(*pair, threads, seconds) for pair, size in sizes.items())


def rate(source: Encoding, target: Encoding, threads: int, seconds: float) -> float:
    """Return the weights per second that so many threads turn from one encoding into another."""
    numbers = np.random.default_rng(0).standard_normal((1, COUNT), np.float32) * np.float32(0.02)
    raw = transcode(numbers.view(np.uint8), ENCODINGS["F32"], source).raw

    def work(_: int) -> float:
        end, done = time.perf_counter() + seconds, 0
        start = time.perf_counter()
        while time.perf_counter() < end or not done:
            transcode(raw.copy(), source, target, measure=True)
            done += COUNT
        return done / (time.perf_counter() - start)

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(work, range(threads)))


def compare(
    label: str, folder: Path, sources: dict[str, Path], arguments: argparse.Namespace
) -> int:
    """Measure one conversion and what it is held against; print, and return its peak."""
    kind, name, options, target = WORKS[label]
    source, out = sources[kind], folder / name
    ours: list[float] = []
    disk: list[float] = []
    codecs: list[float] = []
    peaks: list[int] = []
    for _ in range(arguments.repeats):
        warm(source)
        seconds, peak = measure(source, out, "-j", str(arguments.threads), *options)
        ours.append(seconds)
        peaks.append(peak)
        if options:
            codecs.append(encoded(source, out, arguments.threads, arguments.seconds))
        warm(out if options else source)
        disk.append(copied(out if options else source))
        size = out.stat().st_size
        out.unlink()
    took, other = statistics.median(ours), statistics.median(disk)
    line = f"{label}: {took:.2f} s, cp and fsync of {size / 1e6:.0f} MB {other:.2f} s"
    if codecs:
        line += f", codecs alone {statistics.median(codecs):.2f} s"
        other = max(other, statistics.median(codecs))
    print(
        f"{line}: {took / other:.2f} times (target {target:g}), "
        f"peak {max(peaks) / 1e6:.0f} MB (target {MOST_PEAK / 1e6:.0f})",
        flush=True,
    )
    return max(peaks)


def main() -> None:
    """Measure and print; exit with 1 where a peak is over the target."""
    parser = make_parser(__doc__, size="2.2GB", repeats=5, threads=2, folder=True)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each codec, each time")
    parser.add_argument("--only", choices=WORKS, action="append")
    arguments = parser.parse_args()
    labels = arguments.only or list(WORKS)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        kinds = {WORKS[label][0] for label in labels}
        sources = {kind: folder / f"model.{kind}" for kind in kinds}
        for kind, path in sources.items():
            write_llama(path, kind, arguments.size)
        peaks = [compare(label, folder, sources, arguments) for label in labels]
    sys.exit(max(peaks) > MOST_PEAK)


if __name__ == "__main__":
    main()
