"""A llama of 2 GB cut for 4 ranks, against `cp` of the same bytes, and against doing it by hand.

Run with `python tests/bench/sharding.py` (2.2 GB; `--size 100MB` for less). The model is in bf16,
of random numbers, and in the page cache; all sides take turns, in another order each time, and
medians are printed. What is cut is on the disk when its time ends, by weightctl's own fsync, and
what `cp` copies by one behind it; the time of `cp` alone, as people run it, is printed too. By hand
is loading with transformers, and saving slices with safetensors, and an fsync too. Peak memory is
the resident set of each process.

A virtual machine may have given memory that nobody uses back to its host, and what writes first
then waits for it: that took `cp` four times as long. So twice as much as is written is used and
freed again before each side.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

from crossing import write_directory
from measuring import make_parser, run_measured, warm

MOST_PEAK, MOST_TIMES = 350_000_000, 1.3
BY_HAND = """
import os, sys, torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
source, out, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
tensors = model.state_dict()
tensors.pop("lm_head.weight", None)
def part(name, tensor, rank):
    if tensor.dim() == 1:
        return tensor
    axis = 1 if "o_proj" in name or "down_proj" in name else 0
    return tensor.chunk(ranks, axis)[rank].contiguous()
for rank in range(ranks):
    path = f"{out}/rank-{rank}/model.safetensors"
    os.makedirs(os.path.dirname(path))
    save_file({name: part(name, tensor, rank) for name, tensor in tensors.items()}, path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
with open("/proc/self/status") as status:
    print(next(line for line in status if line.startswith("VmHWM")), file=sys.stderr)
"""


class Run(NamedTuple):
    """How long something took, and the peak of its resident memory in bytes."""

    seconds: float
    peak: int = 0


def ours(source: Path, out: Path, ranks: int) -> Run:
    """Cut with the command."""
    return Run(*run_measured("shard", source, out, "--tp", str(ranks), "--quiet"))


def by_hand(source: Path, out: Path, ranks: int) -> Run:
    """Load with transformers, and save slices."""
    return Run(*run_measured(source, out, str(ranks), program=BY_HAND))


def copied(source: Path, out: Path) -> tuple[Run, Run]:
    """Copy the weights with `cp`; return the time of that alone, and with an fsync behind it."""
    start = time.perf_counter()
    subprocess.run(["cp", source / "model.safetensors", out], check=True)
    alone = time.perf_counter() - start
    with out.open("rb") as file:
        os.fsync(file.fileno())
    return Run(alone), Run(time.perf_counter() - start)


def have_memory(nbytes: int) -> None:
    """Use so much memory and free it, in a process of its own."""
    program = "import sys; b'1' * int(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, str(nbytes)], check=True)


def seconds(runs: list[Run]) -> float:
    """Return the median of what runs took."""
    return statistics.median(run.seconds for run in runs)


def peak(runs: list[Run]) -> float:
    """Return the highest peak in MB."""
    return max(run.peak for run in runs) / 1e6


def main() -> None:
    """Measure and print; exit with 1 where the peak is over the target."""
    parser = make_parser(__doc__, size="2.2GB", repeats=5, folder=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--no-hand", action="store_true", help="leave transformers out")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        source, out = folder / "model", folder / "out"
        write_directory(source, arguments.size)
        runs: dict[str, list[Run]] = {"cut": [], "cp": [], "cp and fsync": [], "by hand": []}

        def cut() -> None:
            runs["cut"].append(ours(source, out, arguments.ranks))
            shutil.rmtree(out)

        def copy() -> None:
            alone, synced = copied(source, out)
            out.unlink()
            runs["cp"].append(alone)
            runs["cp and fsync"].append(synced)

        def slices() -> None:
            runs["by hand"].append(by_hand(source, out, arguments.ranks))
            shutil.rmtree(out)

        sides = [cut, copy] if arguments.no_hand else [cut, copy, slices]
        drawn = Random(2)
        for _ in range(arguments.repeats):
            # None is always behind the same one, which may leave its mark on the memory.
            for side in drawn.sample(sides, len(sides)):
                have_memory(2 * arguments.size)
                warm(source / "model.safetensors")
                side()
        nbytes = (source / "model.safetensors").stat().st_size
    took, copying, synced = (seconds(runs[side]) for side in ("cut", "cp", "cp and fsync"))
    print(
        f"{nbytes / 1e6:.0f} MB for {arguments.ranks} ranks: {took:.2f} s, "
        f"cp {copying:.2f} s: {took / copying:.2f} times (target {MOST_TIMES:g}); "
        f"cp and fsync {synced:.2f} s: {took / synced:.2f} times\n"
        f"peak {peak(runs['cut']):.0f} MB (target {MOST_PEAK / 1e6:.0f})"
    )
    if runs["by hand"]:
        hand = seconds(runs["by hand"])
        print(
            f"transformers and slices by hand: {hand:.2f} s, {hand / took:.1f} times as long, "
            f"peak {peak(runs['by hand']):.0f} MB"
        )
    sys.exit(peak(runs["cut"]) > MOST_PEAK / 1e6)


if __name__ == "__main__":
    main()
