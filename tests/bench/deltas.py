"""Patches of a step of reinforcement learning, against `zstd --patch-from` and `bsdiff`.

Run with `python tests/bench/deltas.py` (`--size 20MB` for less). The model is bf16. Its float32
weights are normally distributed, and each is moved by the same learning rate up or down, as Adam
does in a short run, and rounded again: so the fewest words change. The target is a patch of 10 % of
the model. Programs that are not installed are left out. bsdiff needs 17 bytes of memory for each
byte, so it gets a smaller model (`--bsdiff-size`), on which the others run again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from measuring import make_parser, run_measured
from weightctl.text.sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

TARGET = 0.10
COLUMNS, ROWS = 2048, 1024


def round_to_bf16(values: np.ndarray) -> np.ndarray:
    """Return the upper halves of float32 values, rounded to nearest even."""
    words = values.view(np.uint32)
    return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype("<u2")


def write_models(folder: Path, nbytes: int, rate: float) -> tuple[Path, Path, float]:
    """Write a model and the model after a step; return their paths and the changed part."""
    paths = folder / "before.safetensors", folder / "after.safetensors"
    count = max(nbytes // (2 * COLUMNS * ROWS), 1)
    rows = ROWS if nbytes >= 2 * COLUMNS * ROWS else max(nbytes // (2 * COLUMNS), 1)
    size = 2 * COLUMNS * rows
    header = {
        f"layers.{number}.weight": {
            "dtype": "BF16",
            "shape": [rows, COLUMNS],
            "data_offsets": [number * size, (number + 1) * size],
        }
        for number in range(count)
    }
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    random = np.random.default_rng(0)
    changed = 0
    with paths[0].open("wb") as before, paths[1].open("wb") as after:
        for file in (before, after):
            file.write(len(raw).to_bytes(8, "little") + raw)
        for _ in range(count):
            weights = random.standard_normal(COLUMNS * rows, np.float32) * np.float32(0.02)
            steps = np.where(random.random(weights.size) < 0.5, -rate, rate).astype(np.float32)
            first, second = round_to_bf16(weights), round_to_bf16(weights + steps)
            changed += int((first != second).sum())
            before.write(first.tobytes())
            after.write(second.tobytes())
    return *paths, changed / (count * COLUMNS * rows)


def run(command: Sequence[str | Path]) -> tuple[float, int]:
    """Return the seconds and the peak bytes of a process, 0 for that of another program."""
    if command[0] == "weightctl":
        return run_measured(*command[1:])
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - start, 0


def measure(name: str, folder: Path, before: Path, after: Path) -> None:
    """Print the size of a patch, and the times to make and apply it; check what it restores."""
    patch, restored = folder / f"{name.split(maxsplit=1)[0]}.patch", folder / "restored.safetensors"
    make: list[str | Path]
    apply: list[str | Path]
    if name == "weightctl":
        make = ["weightctl", "diff", before, after, "--patch", patch, "--force"]
        apply = ["weightctl", "apply", before, patch, restored]
    elif name == "bsdiff":
        make, apply = ["bsdiff", before, after, patch], ["bspatch", before, restored, patch]
    else:
        options = ["--long=31", "-q", "-f", f"--patch-from={before}"]
        make = ["zstd", name.split()[1], "-T0", *options, after, "-o", patch]
        apply = ["zstd", "-d", *options, patch, "-o", restored]
    took, peak = run(make)
    again, other = run(apply)
    same = restored.read_bytes() == after.read_bytes()
    restored.unlink()
    size, whole = patch.stat().st_size, after.stat().st_size
    print(
        f"  {name:10} {size / 1e6:8.2f} MB, {100 * size / whole:6.2f} %, made in {took:7.2f} s "
        f"({whole / took / 1e6:.0f} MB/s), applied in {again:.2f} s ({whole / again / 1e6:.0f} "
        "MB/s)" + (f", peaks {peak / 1e6:.0f} and {other / 1e6:.0f} MB" if peak else ""),
        flush=True,
    )
    if not same:
        raise SystemExit(f"{name} did not restore the model")
    if name == "weightctl" and size > TARGET * whole:
        print(f"  the target of {100 * TARGET:.0f} % is missed")


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__, size="300MB")
    parser.add_argument(
        "--bsdiff-size",
        type=parse_size,
        default="30MB",
        help="of the model for bsdiff; 0B for none",
    )
    parser.add_argument("--rate", type=float, default=2e-6, help="by which each weight moves")
    arguments = parser.parse_args()
    for nbytes, programs in (
        (arguments.size, ("weightctl", "zstd -3", "zstd -9")),
        (arguments.bsdiff_size, ("weightctl", "zstd -19", "bsdiff")),
    ):
        if not nbytes:
            continue
        with tempfile.TemporaryDirectory() as made_in:
            folder = Path(made_in)
            before, after, changed = write_models(folder, nbytes, arguments.rate)
            size = after.stat().st_size / 1e6
            print(f"{size:.1f} MB of bf16, {100 * changed:.1f} % of the words changed:")
            for name in programs:
                if name == "weightctl" or shutil.which(name.split()[0]):
                    measure(name, folder, before, after)


if __name__ == "__main__":
    main()
