"""Workers read and write object stores; the objects have the bytes of a single run."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from each import usual
from rank_processes import end_ranks, errors_of, run_ranks, start_rank
from tested_stores import BUCKET, put_files, serve_s3
from weightctl import convert, gather, shard
from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from servers.s3 import S3Server

RULES = {"layer.*.weight": "columnwise"}
WORKS = {
    "gguf": lambda source, out, **run: convert(source, f"{out}.gguf", quant="Q4_K", **run),
    "parts": lambda source, out, **run: convert(
        source, out, to="safetensors", dtype="bf16", max_shard_size="3MB", **run
    ),
    "copy": lambda source, out, **run: convert(source, f"{out}.safetensors", **run),
    "shards": lambda source, out, **run: shard(source, out, tp=2, rules=RULES, **run),
}

RANKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gguf": ("out.gguf", "convert", {"quant": "Q4_K"}),
    "parts": ("out", "convert", {"to": "safetensors", "dtype": "bf16", "max_shard_size": "3MB"}),
    "shards": ("out", "shard", {"tp": 2, "rules": RULES}),
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Generator[S3Server, None, None]:
    with serve_s3(monkeypatch) as found:
        yield found


@pytest.fixture
def model(tmp_path: Path, server: S3Server) -> str:
    """Return the URL of a model whose tensors do not end with parts of uploads."""
    random = np.random.default_rng(3)
    tensors = {
        f"layer.{number}.weight": random.standard_normal((320 + 64 * (number % 3), 512), np.float32)
        for number in range(8)
    }
    tensors["norm.bias"] = np.ones(3, np.float32)
    (tmp_path / "model").mkdir()
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    return f"{put_files(server, tmp_path / 'model', 'source')}/model.safetensors"


def objects(server: S3Server, prefix: str) -> dict[str, bytes]:
    """Return the contents of all objects below a prefix, without the markers of ranks."""
    bucket = server.buckets[BUCKET]
    below = [key for key in bucket if key.startswith(prefix)]
    markers = [key.rpartition("/")[2].partition("-")[0] for key in below if ".ranks/" in key]
    assert sorted(markers) in ([], ["published", "records"])
    return {key.removeprefix(prefix): bucket[key] for key in below if ".ranks/" not in key}


@pytest.mark.parametrize("work", usual(["gguf"], WORKS))
def test_workers_write_objects_with_the_same_bytes(work: str, model: str, server: S3Server) -> None:
    WORKS[work](model, f"s3://{BUCKET}/one/out")
    WORKS[work](model, f"s3://{BUCKET}/two/out", on="processes:2")
    assert objects(server, "two/") == objects(server, "one/")
    assert objects(server, "one/")
    assert not server.buckets[BUCKET].uploads


@pytest.mark.long
def test_workers_gather_shards_of_a_store(model: str, server: S3Server) -> None:
    shard(model, f"s3://{BUCKET}/tp2", tp=2, rules=RULES)
    gather(f"s3://{BUCKET}/tp2", f"s3://{BUCKET}/one/out.safetensors")
    gather(f"s3://{BUCKET}/tp2", f"s3://{BUCKET}/two/out.safetensors", on="processes:2")
    assert objects(server, "two/") == objects(server, "one/")


PART = 1 << 18


@pytest.mark.long
@pytest.mark.parametrize("work", RANKS)
def test_ranks_write_objects_with_the_same_bytes(work: str, model: str, server: S3Server) -> None:
    name, command, options = RANKS[work]
    WORKS[work](model, f"s3://{BUCKET}/one/out")
    ended = run_ranks(
        [2, 0, 3, 1], command, model, f"s3://{BUCKET}/two/{name}", part=PART, **options
    )
    assert [each["code"] for each in ended] == [0, 0, 0, 0], errors_of(ended)
    assert objects(server, "two/") == objects(server, "one/")
    assert not server.buckets[BUCKET].uploads


@pytest.mark.long
def test_ranks_that_are_killed_leave_objects_to_others(model: str, server: S3Server) -> None:
    convert(model, f"s3://{BUCKET}/one/out.gguf", quant="Q4_K")
    out = f"s3://{BUCKET}/two/out.gguf"
    for rank, kill_at in ((0, 3), (2, 2)):
        killed = start_rank(
            rank, "convert", model, out, ranks=3, kill_at=kill_at, part=PART, quant="Q4_K"
        )
        assert end_ranks([killed])[0]["code"] == -signal.SIGKILL
    for rank in (1, 0, 2):
        each = start_rank(rank, "convert", model, out, ranks=3, part=PART, quant="Q4_K")
        ended = end_ranks([each])[0]
        assert ended["code"] == 0, ended["errors"]
        assert ended["is_last"] == (rank == 1)
    assert objects(server, "two/") == objects(server, "one/")


@pytest.mark.long
def test_a_slow_rank_finds_that_the_objects_are_complete(model: str, server: S3Server) -> None:
    convert(model, f"s3://{BUCKET}/single/out.gguf", quant="Q4_K")
    out = f"s3://{BUCKET}/other/out.gguf"
    started = [
        start_rank(rank, "convert", model, out, ranks=2, slow_at=slow_at, part=PART, quant="Q4_K")
        for rank, slow_at in ((0, 2), (1, None))
    ]
    ended = end_ranks(started)
    assert [each["code"] for each in ended] == [0, 0], errors_of(ended)
    assert ended[1]["is_last"]
    assert objects(server, "other/") == objects(server, "single/")
    assert not server.buckets[BUCKET].uploads


def test_one_process_continues_the_objects_of_ranks(model: str, server: S3Server) -> None:
    convert(model, f"s3://{BUCKET}/one/out.gguf", quant="Q4_K")
    out = f"s3://{BUCKET}/two/out.gguf"
    end_ranks([start_rank(0, "convert", model, out, kill_at=5, part=PART, quant="Q4_K")])
    again = convert(model, out, quant="Q4_K")
    assert again.kept_bytes > 0
    assert objects(server, "two/") == objects(server, "one/")


def test_pytorch_objects_of_workers_are_refused(model: str, server: S3Server) -> None:
    with pytest.raises(ConversionError, match="workers cannot write pytorch files to s3://"):
        convert(model, f"s3://{BUCKET}/out.pt", on="processes:2")
    assert set(server.buckets[BUCKET]) == {"source/model.safetensors"}
