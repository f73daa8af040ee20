"""Checkpoints at URLs are read like local ones, with few requests, and never in part."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import save_file

from each import each, usual
from lazy import torch
from servers.base import Answer, Call, Close, IgnoreRange, OtherETag, Reset, Stall
from tested_stores import BUCKET, put_files, serve, serve_s3, serve_web
from weightctl import convert, gather, open_weights, shard
from weightctl.errors import FormatError, MissingFileError
from weightctl.storage.location import parse_location
from weightctl.storage.remote import prefetch
from weightctl.storage.traffic import TRAFFIC
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from servers.base import Server
    from servers.s3 import S3Server

SERVERS = ["web", "s3", "gs", "azurite"]
WIDE = 1 << 10
# In the target of a request; obstore encodes more of it for Google Cloud Storage.
MODEL = "one(/|%2F)model(.|%2E)safetensors"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of checkpoints: a model in parts with its config, GGUF and PyTorch."""
    root = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    arrays = {
        f"model.layers.{number}.mlp.weight": rng.standard_normal((256, WIDE), np.float32)
        for number in range(6)
    }
    one = root / "one"
    one.mkdir()
    save_file(arrays, one / "model.safetensors")
    (one / "config.json").write_text('{"torch_dtype": "float32"}')
    (one / "tokenizer_config.json").write_text("{}")
    convert(one, root / "parts", max_shard_size="2.2MB")
    convert(one / "model.safetensors", root / "model.gguf", quant="Q8_0", names="keep")
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, root / "model.pt")
    return root


@pytest.fixture(params=SERVERS)
def served(
    request: pytest.FixtureRequest,
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    ports: Callable[[str], int],
) -> Generator[tuple[Server, str], None, None]:
    """A server of the checkpoints, and the URL of their directory."""
    with ExitStack() as stack:
        if request.param == "web":
            web = stack.enter_context(serve_web(monkeypatch, models))
            yield web, web.url
            return
        store = stack.enter_context(serve(request.param, monkeypatch, ports))
        monkeypatch.setenv("WEIGHTCTL_TIMEOUT", "2")
        for path in filter(Path.is_file, models.rglob("*")):
            store.put(f"all/{path.relative_to(models)}", path.read_bytes())
        yield store.server, f"{store.url}/all"


@pytest.fixture
def s3(models: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[S3Server, None, None]:
    with serve_s3(monkeypatch) as server:
        put_files(server, models, "all")
        yield server


MODELS = ["one/model.safetensors", "parts/model.safetensors.index.json"]
OPTIONS: list[dict[str, str]] = [{}, {"dtype": "bf16"}, {"max_shard_size": "1MB"}]
FILES = [
    "one/model.safetensors",
    "parts/model.safetensors.index.json",
    "parts/model-00002-of-00003.safetensors",
    "model.gguf",
    "model.pt",
]


@each("name", FILES)
def test_a_remote_checkpoint_is_a_local_one(
    name: str, served: tuple[Server, str], models: Path
) -> None:
    remote, local = open_weights(f"{served[1]}/{name}"), open_weights(models / name)
    assert header_of(remote).tensors == header_of(local).tensors
    assert header_of(remote).metadata == header_of(local).metadata
    for tensor in header_of(local).tensors:
        assert bytes(remote[tensor].data().view()) == bytes(local[tensor].data().view())


@pytest.mark.parametrize(
    ("served", "name", "options"),
    usual(
        [
            *product(["s3"], MODELS, OPTIONS[1:2]),
            *product(["web", "gs", "azurite"], MODELS[1:], OPTIONS[2:]),
        ],
        product(SERVERS, MODELS, OPTIONS),
    ),
    indirect=["served"],
)
def test_a_conversion_of_a_remote_model_has_the_bytes_of_a_local_one(
    name: str, options: dict[str, str], served: tuple[Server, str], models: Path, tmp_path: Path
) -> None:
    convert(f"{served[1]}/{name}", tmp_path / "remote", **options)
    convert(models / name, tmp_path / "local", **options)
    files = sorted(path.name for path in (tmp_path / "local").iterdir())
    assert sorted(path.name for path in (tmp_path / "remote").iterdir()) == files
    assert "tokenizer_config.json" in files
    for file in files:
        assert (tmp_path / "remote" / file).read_bytes() == (tmp_path / "local" / file).read_bytes()


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_prefix_is_a_directory(slash: str, s3: S3Server, models: Path) -> None:
    found = header_of(open_weights(f"s3://{BUCKET}/all/parts{slash}"))
    assert found.tensors == header_of(open_weights(models / "parts")).tensors
    # The listing, a header of each part, and the index.
    assert s3.requests == 1 + 3 + 1


def test_headers_are_requested_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arrays = {
        f"model.layers.{number}.mlp.weight": np.ones((8, 8), np.float32) for number in range(200)
    }
    save_file(arrays, tmp_path / "model.safetensors")
    convert(tmp_path / "model.safetensors", tmp_path / "parts/", max_shard_size="0.3kB")
    with serve_s3(monkeypatch, latency=0.03) as server:
        url = put_files(server, tmp_path / "parts", "parts")
        assert len(header_of(open_weights(url)).files) == 200
        first, last = server.log[0].started, server.log[-1].started + 0.03
    assert server.requests == 202
    assert last - first < 3


@pytest.mark.parametrize("tokens", usual([1000, 100_000], [1000, 20_000, 100_000, 300_000]))
def test_the_header_of_a_large_vocabulary_is_requested_once_and_little_more(
    tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = GGUFWriter(str(tmp_path / "model.gguf"), "llama")
    writer.add_array("tokenizer.ggml.tokens", [f"token number {each}" for each in range(tokens)])
    writer.add_tensor("a.weight", np.ones((2048, 2048), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = (tmp_path / "model.gguf").stat().st_size - 4 * 2048 * 2048
    with serve_web(monkeypatch, tmp_path) as server:
        assert header_of(open_weights(f"{server.url}/model.gguf")).tensors
        exchanges = server.exchanges("GET", "/model.gguf")
        ranges = sorted(map(str, (each.headers["range"] for each in exchanges)))
    assert len(ranges) == len({*ranges})
    # The length of a vocabulary is estimated from its first strings; a request for anything else
    # brings at most one megabyte.
    fetched = sum(each.sent for each in exchanges)
    assert fetched < header + max(header, 1 << 17) + (1 << 18)
    assert fetched < header + (1 << 20) + (1 << 18)
    assert len(ranges) <= 6


def test_the_data_of_tensors_comes_in_large_requests(s3: S3Server, tmp_path: Path) -> None:
    s3.forget()
    convert(f"s3://{BUCKET}/all/one/model.safetensors", tmp_path / "out.safetensors")
    ranges = [each for each in s3.exchanges("GET", "one/model.safetensors") if each.range]
    assert len(ranges) == 2  # the header, and six megabytes
    assert sum(each.sent for each in ranges) < 1.03 * 6 * 256 * WIDE * 4


FAULTS = {
    "503": Answer(503),
    "429": Answer(429),
    "a reset": Reset(1000),
    "a short body": Close(1000),
    "a stall": Stall(4, 1000),
}


@pytest.mark.parametrize(
    ("served", "fault"),
    usual(
        # A stall takes seconds; `test_remote_faults` has one by default.
        [
            *product(["s3"], [name for name in FAULTS if name != "a stall"]),
            *product(["web", "gs", "azurite"], ["a reset"]),
        ],
        product(SERVERS, FAULTS),
    ),
    indirect=["served"],
)
def test_a_request_that_fails_is_repeated(
    fault: str, served: tuple[Server, str], models: Path, tmp_path: Path
) -> None:
    server, url = served
    server.inject(FAULTS[fault], "GET", path=MODEL, nth={0, 2})
    before = TRAFFIC.counts.retries
    convert(f"{url}/one/model.safetensors", tmp_path / "remote.safetensors", dtype="f16")
    convert(models / "one/model.safetensors", tmp_path / "local.safetensors", dtype="f16")
    remote, local = (tmp_path / f"{each}.safetensors" for each in ("remote", "local"))
    assert remote.read_bytes() == local.read_bytes()
    assert TRAFFIC.counts.retries > before


def test_an_object_that_changes_is_an_error(served: tuple[Server, str], tmp_path: Path) -> None:
    server, url = served
    server.inject(OtherETag(), "GET", path=MODEL, nth=range(1, 100))
    with pytest.raises(FormatError, match="changed"):
        convert(f"{url}/one/model.safetensors", tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_an_object_without_an_etag_that_changes_is_an_error(
    models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    shutil.copy(models / "one" / "model.safetensors", path)

    def replace() -> None:
        path.write_bytes(path.read_bytes()[:-1000])

    with serve_web(monkeypatch, tmp_path) as server:
        server.etags = False
        server.inject(Call(replace), nth=1, times=1)
        with pytest.raises(FormatError, match="changed"):
            convert(f"{server.url}/model.safetensors", tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_a_server_without_ranges_is_named(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_web(monkeypatch, models) as server:
        server.inject(IgnoreRange())
        with pytest.raises(FormatError, match="range requests") as caught:
            open_weights(f"{server.url}/model.gguf")
    assert "download" in caught.value.hint


@each("name", ["none.gguf", "one/none/", "none"])
def test_what_does_not_exist_is_a_missing_file(name: str, served: tuple[Server, str]) -> None:
    with pytest.raises(MissingFileError, match=name.rstrip("/")):
        open_weights(f"{served[1]}/{name}")


def test_denied_access_says_what_to_check(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-canary")
    with pytest.raises(FormatError) as caught:
        open_weights(f"s3://{BUCKET}/all/model.gguf")
    assert "AWS_SECRET_ACCESS_KEY" in caught.value.hint
    assert "canary" not in str(caught.value)
    assert s3.requests


def test_a_signature_in_a_url_is_sent_and_not_shown(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_web(monkeypatch, models) as server:
        opened = open_weights(f"{server.url}/model.gguf?X-Amz-Signature=canary")
        assert all("X-Amz-Signature=canary" in each.target for each in server.log)
        assert header_of(opened).files == (f"{server.url}/model.gguf",)
        server.inject(Answer(403))
        with pytest.raises(FormatError) as caught:
            open_weights(f"{server.url}/model.gguf?X-Amz-Signature=canary")
    assert "canary" not in str(caught.value)


def test_a_file_url_is_a_path(models: Path) -> None:
    assert parse_location(f"file://{models}/a%20b").name == f"{models}/a b"
    assert header_of(open_weights(f"file://{models}/model.gguf")).files == (f"{models}/model.gguf",)


def test_shards_are_written_to_a_file_url_and_gathered(models: Path, tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    url = f"file://{tmp_path}/a%20b"
    shard(models / "one" / "model.safetensors", f"{url}/ranks", pp=1, rules={".*": "replicate"})
    gather(f"{url}/ranks", f"{url}/whole.safetensors")
    found = open_weights(tmp_path / "a b" / "whole.safetensors")
    assert header_of(found).tensors == header_of(open_weights(models / "one")).tensors


def test_an_index_that_names_a_missing_part_is_an_error(s3: S3Server) -> None:
    del s3.buckets[BUCKET].objects["all/parts/model-00002-of-00003.safetensors"]
    with pytest.raises(FormatError, match="1 of 3 parts is missing"):
        open_weights(f"s3://{BUCKET}/all/parts")
    index = json.loads(s3.buckets[BUCKET]["all/parts/model.safetensors.index.json"])
    opened = open_weights(f"s3://{BUCKET}/all/parts", partial=True)
    assert len(header_of(opened).tensors) < len(index["weight_map"])


def test_no_more_is_fetched_ahead_than_the_limit_unless_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefetch._LIMIT, "most", prefetch._LIMIT._used + 2 * prefetch.CHUNK)
    fetched = prefetch.ReadAhead(lambda start, stop: [bytes(stop - start)], 8 * prefetch.CHUNK)
    assert fetched.expect(0, 2 * prefetch.CHUNK)
    assert not fetched.expect(0, 3 * prefetch.CHUNK)
    assert fetched.expect(0, 3 * prefetch.CHUNK, is_needed=True)
    fetched.close()
