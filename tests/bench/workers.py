"""Conversions and shards by 2 workers of one thread each, against one process with 2 threads.

Run with `python tests/bench/workers.py` (`--size 200MB` for less; `--dask` and `--ray` also start
local clusters). Tasks have `--task-size`, 1 GB. All take turns, in a different order each time, and
each once without being counted; what each wrote is on the disk before the next starts. Medians are
printed, with the ratio to one process. Seconds are those of the calls: for `processes:2` with the
start of the processes, for processes that run already (`2 processes, started`) and for clusters
without it. Seconds of the processor are of this process and of these processes, not of clusters; on
a machine with other work they are the firmer ones. The outputs are compared byte for byte.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).parent.parent / "support"))

import weightctl
from clusters import CLUSTERS, start_cluster
from llama import write_llama
from weightctl.text.sizes import parse_size
from weightctl.write.executors.processes import ProcessExecutor

if TYPE_CHECKING:
    from collections.abc import Callable


def list_works(model: Path) -> dict[str, Callable[..., object]]:
    """Return what is measured, as functions of the output's path and the options of a run."""
    return {
        "Q4_K_M": lambda out, **run: weightctl.convert(model, f"{out}.gguf", quant="Q4_K_M", **run),
        "BF16, parts of 100 MB": lambda out, **run: weightctl.convert(
            model, out, to="safetensors", dtype="bf16", max_shard_size="100MB", **run
        ),
        "shards for 2 ranks": lambda out, **run: weightctl.shard(model, out, tp=2, **run),
    }


def measure(size: str, task_size: str, repeats: int, clusters: list[str]) -> None:
    """Print the medians of all works and ways."""
    ways: dict[str, dict[str, Any]] = {
        "1 process, 2 threads": {"threads": 2},
        "processes:2": {"on": "processes:2", "task_size": task_size},
    }
    # Installed packages have compiled modules, and so have these.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        model = folder / "model.gguf"
        write_llama(model, "gguf", parse_size(size))
        executor = stack.enter_context(ProcessExecutor(2))
        ways["2 processes, started"] = {"on": executor, "task_size": task_size}
        for kind in clusters:
            cluster = stack.enter_context(start_cluster(kind))
            ways[f"{kind}, 2 workers"] = {"on": cluster.on, "task_size": task_size}
        for work, run in list_works(model).items():
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            processor: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(repeats + 1):
                first_out: Path | None = None
                for way in Random(number).sample(list(ways), len(ways)):
                    out = folder / f"out-{list(ways).index(way)}"
                    os.sync()
                    used, started = count_processor(executor), time.perf_counter()
                    run(out, **ways[way])
                    took = time.perf_counter() - started
                    used = count_processor(executor) - used
                    if number:
                        seconds[way].append(took)
                        processor[way].append(used)
                    if first_out is None:
                        first_out = out
                        continue
                    compare(first_out, out)
                    remove(out)
                if first_out is not None:
                    remove(first_out)
            first = statistics.median(seconds[next(iter(ways))])
            for way, taken in seconds.items():
                median = statistics.median(taken)
                used = statistics.median(processor[way])
                print(
                    f"{work:24} {way:24} {median:8.2f} s {median / first:6.2f}   processor "
                    f"{used:6.2f} s",
                    flush=True,
                )


def count_processor(executor: ProcessExecutor) -> float:
    """Return the seconds of the processor of this process, those that ended, and an executor's."""
    times = os.times()
    found = times.user + times.system + times.children_user + times.children_system
    for number in executor.process_ids():
        with open(f"/proc/{number}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def compare(first: Path, other: Path) -> None:
    """Exit if two outputs are not the same."""
    for path, same in zip(list_paths(first), list_paths(other), strict=True):
        if path.is_file() and not filecmp.cmp(path, same, shallow=False):
            raise SystemExit(f"{same} differs from {path}")


def remove(out: Path) -> None:
    """Delete an output."""
    for path in out.parent.glob(f"{out.name}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def list_paths(out: Path) -> list[Path]:
    """Return the paths of an output, and those below it."""
    return sorted(path for path in out.parent.rglob("*") if is_of(path, out))


def is_of(path: Path, out: Path) -> bool:
    """Whether a path is the output, or below it."""
    return os.path.relpath(path, out.parent).partition(os.sep)[0].partition(".")[0] == out.name


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="4GB")
    parser.add_argument("--task-size", default="1GB")
    parser.add_argument("--repeats", type=int, default=5)
    for kind in CLUSTERS:
        parser.add_argument(f"--{kind}", action="store_true")
    given = parser.parse_args()
    measure(
        given.size,
        given.task_size,
        given.repeats,
        [kind for kind in CLUSTERS if getattr(given, kind)],
    )
