"""Clusters of Ray and Dask on this machine, whose workers can be killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

__all__ = ["CLUSTERS", "Cluster", "start_cluster"]


class Cluster(NamedTuple):
    """A cluster with two workers: what `--on` needs in this process, and in any other process.

    `list_workers` returns the ids of the processes that are at work.
    """

    on: str
    variables: dict[str, str]
    list_workers: Callable[[], list[int]]

    def kill_worker(self) -> bool:
        """Kill a worker; return False if none is at work."""
        workers = self.list_workers()
        for number in random.sample(workers, len(workers)):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
                return True
        return False


@contextmanager
def _start_dask() -> Generator[Cluster, None, None]:
    from distributed import Client, LocalCluster

    with (
        # Port 0: another process of the tests may have a cluster too, and the usual port.
        LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        workers = _DaskWorkers(cluster.scheduler_address, client)
        try:
            client.wait_for_workers(2)
            address = cluster.scheduler_address.removeprefix("tcp:")
            yield Cluster(f"dask:{address}", {}, workers.list_running)
        finally:
            workers.end()


class _DaskWorkers:
    """Two workers of a scheduler; one that was killed is replaced, as a job scheduler would.

    A nanny of Dask gives up if its worker is killed while it starts.
    """

    def __init__(self, scheduler: str, client: Any) -> None:
        self._client = client
        self._command = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler,
                         "--no-nanny", "--nthreads=1", "--no-dashboard"]  # fmt: skip
        self._processes = [self._start() for _ in range(2)]
        self._is_over = Event()
        # Also when no test asks for workers: otherwise a run whose workers are all gone never ends.
        self._replacing = Thread(target=self._replace, daemon=True)
        self._replacing.start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stderr=subprocess.DEVNULL)

    def _replace(self) -> None:
        while not self._is_over.wait(0.2):
            for place, process in enumerate(self._processes):
                if process.poll() is not None:
                    self._processes[place] = self._start()

    def list_running(self) -> list[int]:
        """Return the ids of the workers that the scheduler knows."""
        # A worker that has just ended cannot be asked.
        with suppress(OSError):
            known = {*self._client.run(os.getpid).values()}
            return [each.pid for each in self._processes if each.pid in known]
        return []

    def end(self) -> None:
        self._is_over.set()
        self._replacing.join()
        for process in self._processes:
            process.kill()
            process.wait()


@contextmanager
def _start_ray() -> Generator[Cluster, None, None]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    import ray

    found: Any = ray
    context = found.init(
        "local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error"
    )
    try:
        address = context.address_info["gcs_address"]
        yield Cluster("ray", {"RAY_ADDRESS": address}, lambda: [*_list_ray_workers()])
    finally:
        found.shutdown()


def _list_ray_workers() -> Iterator[int]:
    """Yield the workers that run a call, and were started by this process."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            with open(f"/proc/{name}/cmdline", "rb") as file:
                is_at_work = file.read().startswith(b"ray::_answer")
            if is_at_work and os.getpid() in _list_parents(int(name)):
                yield int(name)


def _list_parents(number: int) -> Iterator[int]:
    while number > 1:
        with open(f"/proc/{number}/stat") as file:
            number = int(file.read().rpartition(")")[2].split()[1])
        yield number


CLUSTERS = {"ray": _start_ray, "dask": _start_dask}


def start_cluster(kind: str) -> Any:
    """Return a context manager that starts a cluster and ends it."""
    return CLUSTERS[kind]()
