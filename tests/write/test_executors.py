"""A conversion by workers writes the same bytes as a conversion in this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from each import usual
from weightctl import convert, gather, shard
from weightctl.errors import ConversionError, OutputError
from weightctl.write.executors import WorkerLostError, distribution
from weightctl.write.executors.destinations import (
    Delivered,
    Rest,
    RestRange,
    TemporaryFiles,
    _OpenUploads,
)
from weightctl.write.executors.processes import ProcessExecutor
from weightctl.write.executors.worker import Job, PlanRequest, digest_codecs, run_batch
from weightctl.write.journal import Purpose

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

KINDS = {
    "gguf": ("out.gguf", {"quant": "Q4_K"}),
    "parts": ("out", {"dtype": "bf16", "max_shard_size": "3MB", "to": "safetensors"}),
    "pytorch": ("out.pt", {"dtype": "f16"}),
    "copy": ("out.safetensors", {}),
}


def make_model(path: Path, *, count: int = 8, rows: int = 512) -> Path:
    random = np.random.default_rng(7)
    tensors = {
        f"layer.{number}.weight": random.standard_normal((rows, 512), np.float32)
        for number in range(count)
    }
    save_file({**tensors, "norm.bias": np.ones(3, np.float32)}, path)
    return path


@pytest.fixture(scope="module")
def workers() -> Generator[ProcessExecutor, None, None]:
    """Two processes, for tests that would find nothing else in new ones."""
    with ProcessExecutor(2) as executor:
        yield executor


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "model.safetensors")


def contents(path: Path) -> dict[str, bytes]:
    """Return the bytes of all files at a path, by their names below it."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return {str(each.relative_to(path)): each.read_bytes() for each in files}


@pytest.mark.usefixtures("own_children")
@pytest.mark.parametrize("kind", usual(["gguf", "copy"], KINDS))
def test_the_output_of_processes_has_the_same_bytes(
    kind: str, model: Path, tmp_path: Path, workers: ProcessExecutor
) -> None:
    name, options = KINDS[kind]
    single, distributed = tmp_path / "single" / name, tmp_path / "distributed" / name
    for each in (single, distributed):
        each.parent.mkdir()
    made: list[int] = []
    one = convert(model, single, **options)
    on = "processes:2" if kind == "gguf" else workers
    other = convert(model, distributed, **options, on=on, progress=made.append)
    assert contents(distributed) == contents(single)
    assert other.losses == one.losses
    assert sum(made) == sum(item.info.nbytes for item in other.plan.items)
    assert os.listdir(distributed.parent) == [name]


def test_any_executor_can_do_the_work(model: Path, tmp_path: Path) -> None:
    convert(model, tmp_path / "single.gguf", quant="Q8_0")
    with ThreadPoolExecutor(2) as executor:
        convert(model, tmp_path / "other.gguf", quant="Q8_0", on=executor, task_size="1MB")
        assert executor.submit(int, "3").result() == 3  # it has not been ended
        opened = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
        assert not [each for each in opened if each.startswith(str(tmp_path))]
    assert (tmp_path / "other.gguf").read_bytes() == (tmp_path / "single.gguf").read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the files of processes")
def test_workers_that_stay_have_no_output_open(
    model: Path, tmp_path: Path, workers: ProcessExecutor
) -> None:
    convert(model, tmp_path / "out.gguf", quant="Q8_0", on=workers)
    numbers = workers.process_ids()
    files = [each for number in numbers for each in Path(f"/proc/{number}/fd").iterdir()]
    opened = [os.readlink(each) for each in files]
    assert numbers
    assert opened
    assert [each for each in opened if each.startswith(str(tmp_path))] == []


def test_a_process_that_is_killed_is_replaced(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model.safetensors", count=24)
    convert(model, tmp_path / "single.gguf", quant="Q4_K")
    killed: list[int] = []
    with ProcessExecutor(2) as executor:

        def kill(_: int) -> None:
            if len(killed) < 3:
                number = executor.process_ids()[0]
                with suppress(ProcessLookupError):  # one that was killed may end just now
                    os.kill(number, signal.SIGKILL)
                    killed.append(number)

        convert(model, tmp_path / "other.gguf", quant="Q4_K", on=executor, progress=kill)
        # The others are alive, so that they lost nothing.
        assert not set(killed) & set(executor.process_ids())
    assert len(killed) == 3
    assert (tmp_path / "other.gguf").read_bytes() == (tmp_path / "single.gguf").read_bytes()


DRIVER = """
import os, signal, sys
from weightctl import convert, gather, shard
from weightctl.write import journal
from weightctl.write.executors.destinations import Rest, RestRange, TemporaryFiles
from weightctl.write.executors.processes import ProcessExecutor

journal.BEGIN_AFTER = 0.0
made = []
with ProcessExecutor(2) as executor:
    def end(nbytes):
        made.append(nbytes)
        if len(made) == 10:
            recorded = 0
            while recorded < 4:
                names = [name for name in os.listdir(sys.argv[3]) if name.endswith(".journal")]
                for name in names:
                    with open(os.path.join(sys.argv[3], name), "rb") as file:
                        recorded = len(file.readlines())
            print(*executor.process_ids(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    convert(sys.argv[1], sys.argv[2], quant="Q4_K", on=executor, progress=end, task_size="1MB")
"""


@pytest.mark.parametrize("on", usual(["processes:2"], ["processes:2", None]))
def test_a_run_that_is_killed_is_continued(on: str | None, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model.safetensors", count=32)
    convert(model, tmp_path / "single.gguf", quant="Q4_K")
    place = tmp_path / "place"
    place.mkdir()
    arguments = [str(model), str(place / "out.gguf"), str(place)]
    ended = subprocess.run(
        [sys.executable, "-c", DRIVER, *arguments], check=False, capture_output=True, text=True
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    for number in map(int, ended.stdout.split()):
        wait_until(lambda number=number: not is_running(number))
    again = convert(model, place / "out.gguf", quant="Q4_K", on=on)
    assert again.kept_bytes > 0
    assert os.listdir(place) == ["out.gguf"]
    assert (place / "out.gguf").read_bytes() == (tmp_path / "single.gguf").read_bytes()


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_running(process_id: int) -> bool:
    try:
        with open(f"/proc/{process_id}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_error_of_a_worker_is_the_error_of_the_run(
    tmp_path: Path, workers: ProcessExecutor
) -> None:
    values = np.ones((512, 512), np.float32)
    values[100, 5] = np.nan
    save_file({"layer.weight": values}, tmp_path / "model.safetensors")
    messages: list[str] = []
    for on in (None, workers):
        with pytest.raises(ConversionError) as caught:
            convert(tmp_path / "model.safetensors", tmp_path / "out.gguf", quant="Q4_K", on=on)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "`layer.weight` has nan at element 51205" in messages[0]
    assert os.listdir(tmp_path) == ["model.safetensors"]


class Doomed(Executor):
    """An executor whose workers end with each call."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        del fn, args, kwargs
        future: Future[Any] = Future()
        future.set_exception(WorkerLostError("worker 1 has ended"))
        return future


def test_workers_that_always_end_are_an_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="5 workers have ended while they ran the same task"):
        convert(model, tmp_path / "out.gguf", quant="Q4_K", on=Doomed())
    assert not os.listdir(tmp_path)


class Stuck(Executor):
    """An executor whose first worker never ends its call."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.count = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.count += 1
        return Future() if self.count == 1 else self._inner.submit(fn, *args, **kwargs)


def test_a_task_that_does_not_end_is_given_to_a_second_worker(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distribution, "PATIENCE", 0.2)
    convert(model, tmp_path / "single.gguf", quant="Q4_K")
    with ThreadPoolExecutor(2) as executor:
        made = convert(model, tmp_path / "other.gguf", quant="Q4_K", on=Stuck(executor))
    assert made.saved is not None
    assert made.saved.workers is not None
    assert made.saved.workers.copies >= 1
    assert made.saved.workers.done == made.saved.workers.tasks
    assert (tmp_path / "other.gguf").read_bytes() == (tmp_path / "single.gguf").read_bytes()


RULES = {"layer.*.weight": "columnwise"}


@pytest.fixture(scope="module")
def sharded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a sharded checkpoint that this process wrote."""
    out = tmp_path_factory.mktemp("sharded") / "tp2"
    shard(model, out, tp=2, rules=RULES)
    return out


def test_shards_have_the_same_bytes(
    model: Path, sharded: Path, tmp_path: Path, workers: ProcessExecutor
) -> None:
    shard(model, tmp_path / "tp2", tp=2, rules=RULES, on=workers)
    assert contents(tmp_path / "tp2") == contents(sharded)


def test_gathered_shards_have_the_same_bytes(
    sharded: Path, tmp_path: Path, workers: ProcessExecutor
) -> None:
    gather(sharded, tmp_path / "single.safetensors")
    gather(sharded, tmp_path / "other.safetensors", on=workers)
    assert contents(tmp_path / "other.safetensors") == contents(tmp_path / "single.safetensors")


@pytest.mark.long
def test_a_dask_cluster_that_is_not_there_is_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"the Dask scheduler at 127\.0\.0\.1:9 cannot be"):
        convert(model, tmp_path / "out.gguf", quant="Q4_K", on="dask://127.0.0.1:9")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("cluster:3", "`cluster:3` is not an executor"),
        ("processes", "the number of processes in `processes:` must be from 1 to 1024"),
        ("dask", "`dask:` has no address of a scheduler"),
        ("ray://", "`ray://` has no address of a cluster"),
        ("ranks:3", "`ranks:3` is not an executor"),
        ("processes:0", "the number of processes in `processes:0` must be"),
        ("processes:-1", "the number of processes in `processes:-1` must be"),
    ],
)
def test_an_unknown_executor_is_refused(on: str, message: str, model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError) as caught:
        convert(model, tmp_path / "out.gguf", quant="Q4_K", on=on)
    assert message in str(caught.value)
    assert not os.listdir(tmp_path)


def test_arrays_in_memory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="workers need the path of a checkpoint"):
        convert({"a": np.ones(3, np.float32)}, tmp_path / "out.gguf", on="processes:2")


def test_a_pipe_is_refused(model: Path) -> None:
    with pytest.raises(ConversionError, match="workers cannot write to -"):
        convert(model, "-", to="gguf", on="processes:2")


def test_a_task_without_bytes_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="a task cannot have 0 bytes"):
        convert(model, tmp_path / "out.gguf", on="processes:2", task_size=0)


def job(model: Path, out: Path, **changes: Any) -> Job:
    """Return the job of a conversion whose output is there already."""
    from weightctl import __version__
    from weightctl.write.outcome import identify_run

    planned = convert(model, out, quant="Q4_K", dry_run=True)
    request = PlanRequest.of(
        convert, {"source": model, "out": out, "quant": "Q4_K", "dry_run": False}
    )
    assert request is not None
    purpose = identify_run(planned.plan, planned.outcome)
    codecs = digest_codecs(planned.plan)
    made = Job(
        "a", request, purpose, TemporaryFiles((str(out),)), __version__, codecs, 1, 1 << 28, False
    )
    return made._replace(token=os.urandom(4).hex(), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "0.0.1"}, "but weightctl 0.0.1 started the run"),
        ({"codecs": "another"}, "a worker would not write the same bytes as this machine"),
        ({"purpose": Purpose("", "")}, "the input that a worker reads differs"),
    ],
)
def test_a_worker_that_would_write_other_bytes_refuses(
    changes: dict[str, Any], message: str, model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    convert(model, out, quant="Q4_K")
    before = out.read_bytes()
    with pytest.raises(ValueError, match=message):
        run_batch(job(model, out, **changes), 0, [0])
    assert out.read_bytes() == before


def test_a_worker_creates_no_file(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    with pytest.raises(OutputError, match="No such file"):
        run_batch(job(model, out), 0, [0])
    assert not os.listdir(tmp_path)


def test_the_rest_of_a_batch_can_be_written_by_two_workers() -> None:
    objects: dict[str, bytes] = {}

    def put(path: str, content: bytes, *, force: bool) -> None:
        assert force or path not in objects
        objects[path] = bytes(content)

    file = SimpleNamespace(take_sent=tuple, take_rest=lambda: [(7, b"ab"), (90, b"c")])
    target: Any = _OpenUploads([file], Any, SimpleNamespace(put=put), "s3://b/rest-")
    found = [target.deliver("1", [0], is_local=False) for _ in range(2)]
    assert objects == {"s3://b/rest-1": b"abc"}
    ranges = (RestRange(0, 7, 0, 2), RestRange(0, 90, 2, 1))
    assert found == [Delivered({0: ()}, Rest("s3://b/rest-1", ranges))] * 2
