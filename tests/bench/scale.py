"""Planning a mixture-of-experts model of 1.6 TB, and a simulation of its tasks on many workers.

Run with `python tests/bench/scale.py` (`--small` for a small model). The checkpoint has 100,428
tensors in 300 parts: headers only, in sparse files. A process plans each kind of work and lists its
tasks; its seconds and its peak memory are printed, with their targets.

Then the tasks are simulated with the rates of this machine: a real model of `--size` is converted
by one worker, which gives the ratio of measured to expected time. The simulation says how long so
many workers take, and how much of their time was of use. `cluster.py` has its rules.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weightctl
from cluster import Inputs, simulate
from giant import FULL, SMALL, write_giant
from llama import write_llama
from weightctl.text.sizes import parse_size
from weightctl.write.executors.distribution import cut_batches, list_keyed_tasks

if TYPE_CHECKING:
    from weightctl.write.executors.worker import PlannedOutput

WORKS: dict[str, dict[str, Any]] = {
    "Q4_K_M": {"out": "out.gguf", "quant": "Q4_K_M"},
    "F8_E4M3, parts of 5 GB": {"out": "out", "dtype": "f8_e4m3", "max_shard_size": "5GB"},
    "shards, tp 8": {"out": "shards", "tp": 8},
    "shards, tp 8 x ep 8": {"out": "shards", "tp": 8, "ep": 8},
}
# The works that are simulated, and the same work on a small dense model.
SIMULATED: dict[str, dict[str, Any]] = {
    "Q4_K_M": {"out": "out.gguf", "quant": "Q4_K_M"},
    "shards, tp 8": {"out": "shards", "tp": 8},
}
MEMORY = 1 << 28


def plan(model: str, work: dict[str, Any]) -> PlannedOutput:
    """Plan a work on a model."""
    options = dict(work)
    out = str(Path(model).parent / options.pop("out"))
    function = weightctl.shard if "tp" in options else weightctl.convert
    planned: PlannedOutput = function(model, out, dry_run=True, **options)
    return planned


def list_tasks(model: str, name: str, degree: int) -> dict[str, Any]:
    """Plan a work as a run does; return its tasks, and what planning took."""
    import resource

    from weightctl.write.outcome import identify_run

    started = time.perf_counter()
    work = dict(WORKS[name])
    work |= {axis: min(work[axis], degree) for axis in ("tp", "ep") if axis in work}
    planned = plan(model, work).make_work(threads=1, memory=MEMORY)
    tasks = list_keyed_tasks(planned.work)
    batches = cut_batches(tasks)
    identify_run(planned.plan, planned.outcome)
    return {
        "seconds": time.perf_counter() - started,
        "processor": time.process_time(),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "tasks": len(tasks),
        "batches": [
            [each.cost, each.read + each.made, each.estimate_seconds()] for each in batches
        ],
    }


def measure_plan(model: Path, name: str, degree: int) -> dict[str, Any]:
    """Plan in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--work", name, "--model", str(model), "--degree", str(degree)],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure_ratio(folder: Path, name: str, size: int) -> float:
    """Return how much longer the work of one thread takes than expected, without the plan."""
    model = folder / "llama.gguf"
    if not model.exists():
        write_llama(model, "gguf", size)
    work = SIMULATED[name] | ({"tp": 2} if "tp" in SIMULATED[name] else {})
    made = plan(str(model), work).make_work(threads=1, memory=MEMORY)
    expected = sum(task.estimate_seconds() for task in list_keyed_tasks(made.work))
    taken: list[float] = []
    for _ in range(3):
        planned: Any = plan(str(model), work)
        started = time.perf_counter()
        planned.save(force=True, threads=1)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken) / expected


def report_plans(model: Path, degree: int) -> dict[str, dict[str, Any]]:
    """Print what planning takes; return the tasks by work."""
    found: dict[str, dict[str, Any]] = {}
    for name in WORKS:
        made = found[name] = measure_plan(model, name, degree)
        largest = max(cost for cost, _, _ in made["batches"])
        seconds = [each for _, _, each in made["batches"]]
        uneven = max(seconds) * len(seconds) / sum(seconds)
        print(
            f"{name:24} {made['seconds']:6.1f} s (target 20), {made['processor']:6.1f} s of the "
            f"processor, peak {made['peak'] / 1e6:5.0f} MB (target 1000)\n"
            f"{'':24} {made['tasks']:,} ranges in {len(seconds)} tasks of at most "
            f"{largest / 1e9:.2f} GB, the longest {uneven:.2f} times the mean",
            flush=True,
        )
    return found


def report_simulation(
    name: str, batches: list[list[float]], ratio: float, given: Inputs, repeats: int
) -> None:
    """Print how long numbers of workers take."""
    print(f"{name}: measured / expected time {ratio:.2f}; {given}")
    count = 1
    while count <= 256:
        rows: list[list[float]] = []
        for seed in range(repeats):
            calm = simulate(batches, ratio, count, given.without_failures(), seed)
            rough = simulate(batches, ratio, count, given, seed)
            rows.append(
                [calm.seconds, calm.efficiency, rough.seconds, rough.efficiency, rough.lost,
                 rough.copies, rough.repeated]
            )  # fmt: skip
        middle = [statistics.median(column) for column in zip(*rows, strict=True)]
        calm_time, calm_use, rough_time, rough_use, lost, copies, repeated = middle
        print(
            f"  {count:4} workers {calm_time:8.0f} s {calm_use:5.0%}   with failures "
            f"{rough_time:8.0f} s {rough_use:5.0%}   {lost:3.0f} lost, {copies:3.0f} copies, "
            f"{repeated:5.1%} done twice",
            flush=True,
        )
        count *= 2


def main() -> None:
    """Read the arguments and run the bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--size", default="500MB", help="of the model that is converted")
    parser.add_argument("--repeats", type=int, default=9, help="of each simulation")
    parser.add_argument("--folder", type=Path, help="for the models; removed afterwards")
    for field, default in Inputs._field_defaults.items():
        parser.add_argument(f"--{field.replace('_', '-')}", type=float, default=default)
    for hidden in ("--work", "--model"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--degree", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        print(json.dumps(list_tasks(given.model, given.work, given.degree)))
        return
    inputs = Inputs(*(getattr(given, field) for field in Inputs._fields))
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        model = Path(folder) / "giant"
        write_giant(model, SMALL if given.small else FULL)
        plans = report_plans(model, 2 if given.small else 8)
        for name in SIMULATED:
            ratio = measure_ratio(Path(folder), name, parse_size(given.size))
            own = inputs._replace(plan=plans[name]["processor"])
            report_simulation(name, plans[name]["batches"], ratio, own, given.repeats)


if __name__ == "__main__":
    main()
