"""Measuring an importance matrix: time and peak memory, against llama-imatrix if it is given.

Run with `python tests/bench/imatrix.py --llama-imatrix PATH`. The model is a generated llama in
bf16 with the tokenizer of tiny-llama (2 GB at most; `--size 300MB` for less, `--layers 48` for
more), and the text is the held-out text of tiny-llama, repeated. Both sides run in processes of
their own, with the same number of threads. Times are processor times. The program `llama-imatrix`
is built from the source of llama.cpp:
`cmake -B build && cmake --build build --target llama-imatrix`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llama import described, size_for, stated, write_random
from weightctl import convert, open_weights
from weightctl.formats import format_module
from weightctl.formats.imatrix.sums import read_sums
from weightctl.text.sizes import format_size, parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence


TINY = Path(__file__).parent.parent.parent / "fixtures" / "tiny-llama"
# Issue 30: at most twice the time of llama-imatrix, and a tenth of the memory for large models.
MOST_TIMES, MOST_MEMORY = 2.0, 0.1
VOCABULARY = 512


def write_model(path: Path, nbytes: int, wanted: int | None = None) -> None:
    """Write the model with the tokenizer of tiny-llama."""
    with tempfile.TemporaryDirectory() as folder:
        convert(TINY, Path(folder) / "tiny.gguf")
        tiny = open_weights(Path(folder) / "tiny.gguf").metadata
    layers, width = size_for(nbytes)
    layers = wanted or layers
    tensors = described(layers, width, VOCABULARY)
    tokenizer = {key: value for key, value in tiny.items() if key.startswith("tokenizer.")}
    metadata = stated(layers, width, VOCABULARY) | tokenizer
    layout = format_module("gguf").layout(tensors, metadata)
    write_random(layout, path)


def run(command: Sequence[str | Path], threads: int) -> tuple[float, int]:
    """Run a command; return its processor time, and its peak memory in bytes."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            raise SystemExit(str(log.read(), "utf-8", "replace")[-3000:])
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def compare(left: Path, right: Path, context: int) -> float:
    """Return the largest relative difference of the means of two importance matrices."""
    ours, theirs = read_sums(str(left), context), read_sums(str(right), context)
    if ours.entries.keys() != theirs.entries.keys():
        raise SystemExit("the importance matrices have different tensors")
    worst = 0.0
    for name, (squares, _) in ours.entries.items():
        other = theirs.entries[name].squares.reshape(squares.shape)
        worst = max(worst, float((np.abs(squares - other) / np.maximum(other, 1e-30)).max()))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", default="2.2GB")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--chunks", type=int, default=32)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--llama-imatrix", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        model, text = here / "model.gguf", here / "text.txt"
        write_model(model, parse_size(given.size), given.layers)
        once = (TINY / "held-out.txt").read_text()
        text.write_text(once * (1 + 4 * given.chunks * given.context // len(once)))
        size = model.stat().st_size
        common = f"{given.chunks} chunks of {given.context} tokens, {given.threads} threads"
        print(f"a model of {format_size(size)}: {common}")
        arguments = [
            "imatrix", model, "-o", here / "ours.gguf", "--text-file", text, "--quiet",
            "--chunks", str(given.chunks), "--context", str(given.context),
        ]  # fmt: skip
        seconds, peak = run([sys.executable, "-m", "weightctl", *arguments], given.threads)
        print(f"weightctl: {seconds:.1f} s, {format_size(peak)}")
        if given.llama_imatrix is None:
            return
        threads = str(given.threads)
        arguments = [
            "-m", model, "-f", text, "-o", here / "theirs.gguf", "-c", str(given.context),
            "--chunks", str(given.chunks), "--no-ppl", "-t", threads, "-tb", threads, "-ngl", "0",
        ]  # fmt: skip
        theirs, most = run([given.llama_imatrix, *arguments], given.threads)
        print(f"llama-imatrix: {theirs:.1f} s, {format_size(most)}")
        print(f"times: {seconds / theirs:.2f} (target {MOST_TIMES})")
        print(f"memory: {peak / most:.2f} (target {MOST_MEMORY} for models larger than memory)")
        worst = compare(here / "ours.gguf", here / "theirs.gguf", given.context)
        print(f"largest relative difference: {worst:.2g}")


if __name__ == "__main__":
    main()
