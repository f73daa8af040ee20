"""Clusters write the bytes of a single run, also if workers and drivers are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file

import weightctl
from clusters import CLUSTERS, start_cluster
from tested_stores import BUCKET, put_files, serve_s3
from weightctl import convert, gather, shard

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from clusters import Cluster
    from servers.s3 import S3Server

# Ray takes 15 seconds to start.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WORKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gguf": ("convert", "out.gguf", {"quant": "Q4_K_M"}),
    "parts": ("convert", "out", {"dtype": "f16", "max_shard_size": "2MB", "to": "safetensors"}),
    "shards": ("shard", "out", {"tp": 2}),
}


class Place(NamedTuple):
    """A cluster, and the server of an object store that its workers reach."""

    cluster: Cluster
    server: S3Server


@pytest.fixture(scope="module", params=CLUSTERS)
def place(request: pytest.FixtureRequest) -> Generator[Place, None, None]:
    # Workers have the environment of the time when their cluster started.
    with (
        pytest.MonkeyPatch.context() as patch,
        serve_s3(patch) as server,
        start_cluster(request.param) as cluster,
    ):
        yield Place(cluster, server)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a llama of GGUF, in whose tensors parts of uploads end anywhere."""
    sys.path.append(os.path.join(os.path.dirname(__file__), os.pardir, "bench"))
    from llama import write_llama

    path = tmp_path_factory.mktemp("model") / "model.gguf"
    write_llama(path, "gguf", 24_000_000)
    return path


def contents(path: Path) -> dict[str, bytes]:
    """Return the bytes of all files at a path, by their names below it."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return {str(each.relative_to(path)): each.read_bytes() for each in files}


def run(work: str, source: Path | str, folder: Path | str, **run: Any) -> Any:
    command, name, options = WORKS[work]
    return getattr(weightctl, command)(source, f"{folder}/{name}", **options, **run)


@pytest.mark.parametrize("work", WORKS)
def test_a_cluster_writes_the_same_bytes(
    work: str, place: Place, model: Path, tmp_path: Path
) -> None:
    for name, on in (("single", None), ("cluster", place.cluster.on)):
        (tmp_path / name).mkdir()
        run(work, model, tmp_path / name, on=on)
    assert contents(tmp_path / "cluster") == contents(tmp_path / "single")


@pytest.mark.parametrize("work", WORKS)
def test_a_cluster_writes_objects_with_the_same_bytes(
    work: str, place: Place, model: Path, tmp_path: Path
) -> None:
    base = put_files(place.server, model.parent, tmp_path.name)
    for name, on in (("single", None), ("cluster", place.cluster.on)):
        run(work, f"{base}/model.gguf", f"{base}/{name}", on=on)
    bucket = place.server.buckets[BUCKET]
    single, cluster = (
        {key.removeprefix(below): bucket[key] for key in bucket if key.startswith(below)}
        for below in (f"{tmp_path.name}/single/", f"{tmp_path.name}/cluster/")
    )
    assert single
    assert cluster == single
    assert not bucket.uploads


def test_a_cluster_gathers_shards(place: Place, model: Path, tmp_path: Path) -> None:
    shard(model, tmp_path / "tp2", tp=2)
    gather(tmp_path / "tp2", tmp_path / "single.gguf")
    gather(tmp_path / "tp2", tmp_path / "cluster.gguf", on=place.cluster.on)
    assert (tmp_path / "cluster.gguf").read_bytes() == (tmp_path / "single.gguf").read_bytes()


def make_large_model(path: Path) -> Path:
    random = np.random.default_rng(7)
    tensors = {
        f"layer.{number}.weight": random.standard_normal((2048, 1024), np.float32)
        for number in range(48)
    }
    save_file(tensors, path)
    return path


def test_three_workers_that_are_killed_are_replaced(place: Place, tmp_path: Path) -> None:
    model = make_large_model(tmp_path / "model.safetensors")
    convert(model, tmp_path / "single.gguf", quant="Q4_K")
    killed: list[bool] = []

    def kill(_: int) -> None:
        if sum(killed) < 3:
            killed.append(place.cluster.kill_worker())

    made = convert(
        model, tmp_path / "cluster.gguf", quant="Q4_K", on=place.cluster.on, progress=kill
    )
    assert sum(killed) == 3
    assert made.saved is not None
    assert made.saved.workers is not None
    # Workers that are killed between two batches lose nothing.
    assert made.saved.workers.lost <= 3
    assert (tmp_path / "cluster.gguf").read_bytes() == (tmp_path / "single.gguf").read_bytes()


DRIVER = """
import os, signal, sys, time
from weightctl import convert
from weightctl.write import journal

journal.BEGIN_AFTER = 0.0
made = []

def end(nbytes):
    made.append(nbytes)
    recorded = 0
    while len(made) == 10 and recorded < 4:
        time.sleep(0.01)
        names = [name for name in os.listdir(sys.argv[3]) if name.endswith(".journal")]
        for name in names:
            with open(os.path.join(sys.argv[3], name), "rb") as file:
                recorded = len(file.readlines())
    if len(made) == 10:
        os.kill(os.getpid(), signal.SIGKILL)

convert(sys.argv[1], sys.argv[2], quant="Q4_K", on=sys.argv[4], progress=end, task_size="1MB")
"""


def test_a_driver_that_is_killed_is_continued(place: Place, tmp_path: Path) -> None:
    model = make_large_model(tmp_path / "model.safetensors")
    convert(model, tmp_path / "single.gguf", quant="Q4_K")
    folder = tmp_path / "folder"
    folder.mkdir()
    arguments = [str(model), str(folder / "out.gguf"), str(folder), place.cluster.on]
    ended = subprocess.run(
        [sys.executable, "-c", DRIVER, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **place.cluster.variables},
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    again = convert(model, folder / "out.gguf", quant="Q4_K", on=place.cluster.on)
    assert again.kept_bytes > 0
    assert os.listdir(folder) == ["out.gguf"]
    assert (folder / "out.gguf").read_bytes() == (tmp_path / "single.gguf").read_bytes()
