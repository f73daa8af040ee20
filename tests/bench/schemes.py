"""Model directories of serving engines, written from 2.2 GB of bf16, against `cp` and fsync.

Run with `python tests/bench/schemes.py` (`--size 100MB` for less). The page cache is warm, both
sides take turns, and medians are printed, with the peak memory of the whole process.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path

import numpy as np

from measuring import copied, make_parser, measure, warm

WIDTH = 4096
MOST_PEAK = 400_000_000
# The schemes, and how often the time of the copy each may take.
SCHEMES = {
    "FP8": 1.5,
    "FP8_DYNAMIC": 1.5,
    "W4A16": 1.5,
    "W8A16": 1.5,
    "NVFP4A16": 1.5,
    "GPTQ": 1.5,
    "AWQ": 1.5,
}


def write_matrices(directory: Path, nbytes: int) -> Path:
    """Write square matrices of normal numbers in bf16, and a config; return the file's path."""
    import torch
    from safetensors.torch import save_file

    generator = np.random.default_rng(0)
    values = generator.standard_normal((WIDTH, WIDTH), np.float32) * np.float32(0.02)
    matrix = torch.from_numpy(values).bfloat16()
    count = max(1, nbytes // (2 * WIDTH * WIDTH))
    # Copies, because tensors that share memory are refused.
    tensors = {f"layers.{each}.up_proj.weight": matrix.clone() for each in range(count)}
    directory.mkdir()
    path = directory / "model.safetensors"
    save_file(tensors, path)
    (directory / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    return path


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__, size="2.2GB", repeats=3, threads=2)
    parser.add_argument("--only", action="append", choices=SCHEMES, help="repeatable")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_matrices(Path(folder) / "in", arguments.size)
        print(f"{path.stat().st_size / 1e9:.2f} GB of bf16, {arguments.threads} threads")
        for scheme in arguments.only or SCHEMES:
            ours: list[float] = []
            theirs: list[float] = []
            peaks: list[int] = []
            for _ in range(arguments.repeats):
                warm(path)
                theirs.append(copied(path))
                warm(path)
                out = Path(folder) / "out"
                options = ("--quant", scheme, "-j", str(arguments.threads))
                seconds, peak = measure(path.parent, out, *options)
                ours.append(seconds)
                peaks.append(peak)
                shutil.rmtree(out)
            seconds, copy = statistics.median(ours), statistics.median(theirs)
            print(
                f"  {scheme}: {seconds:.2f} s, cp and fsync {copy:.2f} s: {seconds / copy:.2f} "
                f"(target {SCHEMES[scheme]}), peak {max(peaks) / 1e6:.0f} MB "
                f"(target {MOST_PEAK / 1e6:.0f} MB)",
                flush=True,
            )


if __name__ == "__main__":
    main()
