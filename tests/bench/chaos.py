"""Conversions whose workers and drivers are killed at random still give the same bytes.

Run with `python tests/bench/chaos.py` (`--on ranks`, `--on dask` or `--on ray` for other workers;
`--store` for input and output in an object store of which 5 % of the requests fail). The same
command is started again and again until so many workers and drivers were killed; so it is where the
command ends because one task has lost too many workers. An output that gets complete is compared
with that of one process, and removed. What was done more than once is
counted in tasks of the scheduler, and divided by the failures. With `--on ranks` there is no
driver. Every range of the output takes `--delay` seconds more than it would, as that of a larger
model does: a task then takes longer than an engine needs to hand over its result.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent), str(HERE.parent / "support")]

import pytest  # noqa: E402

import weightctl  # noqa: E402
from clusters import CLUSTERS, start_cluster  # noqa: E402
from llama import write_llama  # noqa: E402
from servers.base import Answer  # noqa: E402
from tested_stores import BUCKET, serve_s3  # noqa: E402
from weightctl.text.sizes import parse_size  # noqa: E402
from weightctl.write.executors.distribution import cut_batches, list_keyed_tasks  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

DRIVE = """
import sys
import weightctl
from weightctl.write import journal
from weightctl.write.executors import coordination, ranks

journal.BEGIN_AFTER = 0.0
ranks._POLL, coordination.BEAT = 0.05, 0.5
source, out, on, size = sys.argv[1:]
weightctl.convert(source, out, quant="Q4_K_M", on=on, task_size=int(size))
"""
# The error of a command of which one task has lost too many workers.
MOST_LOST = "workers have ended while they ran the same task"
TASK = 16_000_000
RANKS = 3


class Killed(NamedTuple):
    """How many workers and drivers were killed."""

    workers: int = 0
    drivers: int = 0


def list_children(number: int) -> list[int]:
    """Return the processes that a process has started."""
    found: list[int] = []
    with suppress(OSError):
        # Those that other threads have started are listed with these threads.
        for thread in os.listdir(f"/proc/{number}/task"):
            with open(f"/proc/{number}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def kill(number: int) -> bool:
    """Kill a process; return False if it has ended."""
    with suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
        return True
    return False


class Chaos:
    """Starts the command on `source` and `out` again and again, and kills processes."""

    def __init__(
        self,
        on: str,
        source: str,
        out: str,
        variables: dict[str, str],
        has_output: Callable[[], bool],
    ) -> None:
        self._arguments = [sys.executable, "-c", DRIVE, source, out, on, str(TASK)]
        self._count = RANKS if on == "ranks" else 1
        self._is_ranks = on == "ranks"
        self._environment = {**os.environ, **variables}
        self._has_output = has_output
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        # A driver that is killed after the output got its name has nothing left to do.
        self._is_done = False

    def begin(self) -> None:
        """Start the processes of the command that do not run."""
        for rank in range(self._count):
            process = self._running.get(rank)
            if process is None or (process.poll() not in {None, 0} and not self._is_done):
                variables = {"RANK": str(rank), "WORLD_SIZE": str(RANKS)}
                self._running[rank] = subprocess.Popen(
                    self._arguments,
                    env={**self._environment, **variables},
                    stderr=subprocess.PIPE,
                )

    def is_complete(self) -> bool:
        """Whether all processes have ended well; raises `SystemExit` if one has failed.

        The next `begin` starts a command again that has lost too many workers.
        """
        for process in self._running.values():
            if process.poll() not in {None, 0, -signal.SIGKILL}:
                message = process.stderr.read().decode() if process.stderr else ""
                if MOST_LOST not in message:
                    raise SystemExit(f"the command has failed:\n{message}")
        return self._is_done or all(process.poll() == 0 for process in self._running.values())

    def forget(self) -> None:
        """End what runs, and have the next `begin` start all processes."""
        for process in self._running.values():
            process.kill()
            process.communicate()
        self._running.clear()
        self._is_done = False

    def kill_worker(self) -> bool:
        """Kill a rank, or a process that the driver has started."""
        if self._is_ranks:
            alive = [each.pid for each in self._running.values() if each.poll() is None]
            return bool(alive) and kill(random.choice(alive))
        children = [each for driver in self._running.values() for each in list_children(driver.pid)]
        return bool(children) and kill(random.choice(children))

    def kill_driver(self) -> bool:
        """Kill the driver; its workers end with it, or stop working for it."""
        driver = self._running[0]
        ended = driver.poll() is None and kill(driver.pid)
        driver.wait()
        self._is_done = ended and self._has_output()
        return ended


def count_tasks(model: Path) -> tuple[int, int]:
    """Return the ranges of the output and the tasks of the scheduler."""
    planned = weightctl.convert(model, model.with_name("out.gguf"), quant="Q4_K_M", dry_run=True)
    ranges = list_keyed_tasks(planned.make_work(threads=1, memory=1 << 28).work)
    return len(ranges), len(cut_batches(ranges, TASK))


def count_repeated(log: Path) -> tuple[int, int]:
    """Return how many ranges were done, and how many of these were done before."""
    done = Counter(log.read_text().split()) if log.exists() else Counter[str]()
    return len(done), sum(done.values()) - len(done)


def run(
    chaos: Chaos,
    kill_worker: Callable[[], bool],
    log: Path,
    check: Callable[[], object],
    wanted: Killed,
    batch: float,
) -> tuple[Killed, float, int]:
    """Kill until all are killed; return how many, what was done twice, and complete outputs.

    `batch` is the mean number of ranges in a task.
    """
    killed, outputs, repeated, seen = Killed(), 0, 0.0, 0
    while killed != wanted or outputs == 0:
        chaos.begin()
        # A worker that has not begun its first task would lose nothing.
        has_progress = log.exists() and log.stat().st_size > seen
        time.sleep(random.uniform(0.0, 0.3) if has_progress else 0.05)
        if chaos.is_complete():
            check()
            ranges, twice = count_repeated(log)
            if not ranges:
                raise SystemExit("no process has written down its tasks")
            repeated += twice / batch
            log.unlink(missing_ok=True)
            chaos.forget()
            outputs += 1
            seen = 0
        elif not has_progress:
            continue
        elif killed.drivers < wanted.drivers and random.random() < 0.2:
            killed = killed._replace(drivers=killed.drivers + chaos.kill_driver())
            seen = log.stat().st_size
        elif killed.workers < wanted.workers:
            killed = killed._replace(workers=killed.workers + kill_worker())
            seen = log.stat().st_size
    return killed, repeated, outputs


class Place(NamedTuple):
    """Where the input is, and the output will be; and what can be done with the output."""

    source: str
    out: str
    has_output: Callable[[], bool]
    read: Callable[[], bytes]
    remove: Callable[[], object]


@contextmanager
def open_files(model: Path) -> Generator[Place, None, None]:
    """Use the model, and an output beside it."""
    out = model.with_name("out.gguf")
    yield Place(str(model), str(out), out.exists, out.read_bytes, out.unlink)


@contextmanager
def open_store(patch: pytest.MonkeyPatch, model: Path) -> Generator[Place, None, None]:
    """Put the model into an object store of which 5 % of the requests fail."""
    with serve_s3(patch) as server:
        patch.setenv("WEIGHTCTL_TIMEOUT", "20")
        bucket = server.buckets[BUCKET]
        bucket.put("model.gguf", model.read_bytes())
        server.inject(Answer(503), probability=0.05)
        yield Place(
            f"s3://{BUCKET}/model.gguf",
            f"s3://{BUCKET}/out.gguf",
            lambda: "out.gguf" in bucket,
            lambda: bytes(bucket["out.gguf"]),
            lambda: bucket.delete("out.gguf"),
        )


def parse() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--on", choices=["processes", "ranks", *CLUSTERS], default="processes")
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--size", default="200MB")
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--drivers", type=int, default=10)
    parser.add_argument("--delay", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Run the bench."""
    given = parse()
    random.seed(given.seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        log = folder / "log"
        patch.setenv("CHAOS_LOG", str(log))
        patch.setenv("CHAOS_DELAY", str(given.delay))
        paths = [str(HERE / "chaos_patch"), str(HERE.parent.parent), os.environ.get("PYTHONPATH")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        model = folder / "model.gguf"
        write_llama(model, "gguf", parse_size(given.size))
        weightctl.convert(model, folder / "single.gguf", quant="Q4_K_M")
        single = (folder / "single.gguf").read_bytes()
        ranges, tasks = count_tasks(model)
        place = stack.enter_context(open_store(patch, model) if given.store else open_files(model))
        on, variables, wanted = given.on, dict[str, str](), Killed(given.workers, given.drivers)
        if given.on in CLUSTERS:
            cluster = stack.enter_context(start_cluster(given.on))
            on, variables = cluster.on, cluster.variables
        elif given.on == "processes":
            on = "processes:2"
        else:
            wanted = wanted._replace(drivers=0)
        chaos = Chaos(on, place.source, place.out, variables, place.has_output)
        stack.callback(chaos.forget)

        def check() -> None:
            if place.read() != single:
                raise SystemExit("the output differs from that of one process")
            place.remove()

        is_cluster = given.on in CLUSTERS
        started = time.monotonic()
        kill_worker = cluster.kill_worker if is_cluster else chaos.kill_worker
        killed, repeated, outputs = run(chaos, kill_worker, log, check, wanted, ranges / tasks)
        failures = killed.workers + killed.drivers
        where = "object store, 5 % of requests fail" if given.store else "files"
        print(
            f"{given.on}, {where}: killed {killed.workers} workers and {killed.drivers} drivers; "
            f"{outputs} outputs of {tasks} tasks, all identical; {repeated:.1f} tasks done twice, "
            f"{repeated / max(failures, 1):.2f} for each failure; "
            f"{time.monotonic() - started:.0f} s"
        )


if __name__ == "__main__":
    main()
