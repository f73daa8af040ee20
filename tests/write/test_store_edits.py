"""Edits between objects of one store: what does not change is copied by the store, and not sent.

moto and azurite are servers that others wrote. Google Cloud Storage copies whole objects only, and
s3rver copies nothing.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from each import usual
from servers.base import Answer, Call
from tested_stores import serve
from tiny import make_small, save_model
from weightctl import convert, shard
from weightctl.errors import WeightctlError
from weightctl.storage.traffic import TRAFFIC

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from pathlib import Path

    from servers.base import Request
    from tested_stores import TestedStore

STORES = usual(["s3"], ["s3", "moto", "azurite"])
SIDE = 512
SIZES: Mapping[str, Any] = {
    "hidden_size": SIDE, "intermediate_size": SIDE, "num_attention_heads": 8,
    "num_key_value_heads": 8, "vocab_size": SIDE, "tie_word_embeddings": True,
    "torch_dtype": "float32",
}  # fmt: skip


@pytest.fixture(params=STORES)
def store(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    ports: Callable[[str], int],
) -> Generator[TestedStore, None, None]:
    with serve(request.param, monkeypatch, ports) as found:
        yield found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 15 megabytes, of square matrices of a mebibyte each."""
    return save_model(make_small("llama", **SIZES), tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Mixtral of 33 megabytes."""
    return save_model(make_small("mixtral", **SIZES), tmp_path_factory.mktemp("models") / "mixture")


def put(store: TestedStore, directory: Path, prefix: str) -> str:
    """Put the files of a directory into a store; return their URL."""
    for path in sorted(directory.iterdir()):
        store.put(f"{prefix}/{path.name}", path.read_bytes())
    store.server.forget()
    return f"{store.url}/{prefix}"


def written(store: TestedStore, prefix: str) -> dict[str, bytes]:
    """Return the objects below a prefix, by what follows it."""
    objects = store.read().items()
    return {key.removeprefix(prefix): content for key, content in objects if key.startswith(prefix)}


def files_of(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def is_completion(request: Request) -> bool:
    is_of_s3 = request.method == "POST" and "uploadId" in request.query
    return is_of_s3 or request.query.get("comp") == "blocklist"


def is_copy(request: Request) -> bool:
    return any(name.endswith("-copy-source") for name in request.headers)


EDITS: Mapping[str, dict[str, Any]] = {
    "renamed tensors": {"rename": r"^model\.=decoder."},
    "changed metadata": {"metadata": {"license": "mit"}},
    "fewer tensors": {"exclude": ["*layers.1.mlp.*"]},
    "split into parts": {"max_shard_size": "8MB"},
}


@pytest.mark.parametrize(
    ("store", "edit"),
    usual(
        [*product(["s3"], EDITS), ("azurite", "renamed tensors")],
        product(["s3", "moto", "azurite"], EDITS),
    ),
    indirect=["store"],
)
def test_an_edit_sends_the_headers_alone(
    edit: str, store: TestedStore, model: Path, tmp_path: Path
) -> None:
    source = put(store, model, "model")
    before = TRAFFIC.counts
    convert(source, f"{store.url}/out/", **EDITS[edit])
    sent, read = store.server.bytes_received, store.server.bytes_sent
    counted = TRAFFIC.counts.since(before)
    convert(model, tmp_path / "out", **EDITS[edit])
    assert written(store, "out/") == files_of(tmp_path / "out")
    # Each object begins with a part of a quarter of a mebibyte, which has its header.
    objects = len(list((tmp_path / "out").glob("*.safetensors")))
    assert sent < (objects + 1) * 300_000
    assert read < (objects + 1) * 400_000
    assert counted.bytes_sent < (objects + 1) * 300_000


def test_an_edit_in_a_store_that_copies_whole_objects_sends_all_bytes_and_counts_them(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ports: Callable[[str], int]
) -> None:
    with serve("gs", monkeypatch, ports) as store:
        source = put(store, model, "model")
        before = TRAFFIC.counts
        convert(source, f"{store.url}/out/", rename=r"^model\.=decoder.")
        convert(model, tmp_path / "out", rename=r"^model\.=decoder.")
        local = files_of(tmp_path / "out")
        assert written(store, "out/") == local
        # The journal is sent, too.
        sent = TRAFFIC.counts.since(before).bytes_sent - sum(map(len, local.values()))
        assert 0 <= sent < 5000


def test_merged_parts_are_not_sent(store: TestedStore, model: Path, tmp_path: Path) -> None:
    convert(model, tmp_path / "parts", max_shard_size="8MB")
    source = put(store, tmp_path / "parts", "parts")
    convert(source, f"{store.url}/out/")
    assert store.server.bytes_received < 600_000
    convert(tmp_path / "parts", tmp_path / "out")
    assert written(store, "out/") == files_of(tmp_path / "out")


def test_stages_of_a_pipeline_are_not_sent(store: TestedStore, model: Path, tmp_path: Path) -> None:
    source = put(store, model, "model")
    shard(source, f"{store.url}/out/", pp=2)
    assert store.server.bytes_received < 800_000
    expect_shards(store, model, tmp_path, pp=2)


def test_experts_of_ranks_are_not_sent(store: TestedStore, mixture: Path, tmp_path: Path) -> None:
    source = put(store, mixture, "model")
    shard(source, f"{store.url}/out/", ep=2)
    assert store.server.bytes_received < 800_000
    expect_shards(store, mixture, tmp_path, ep=2)


def test_rows_of_ranks_are_not_sent(store: TestedStore, model: Path, tmp_path: Path) -> None:
    source = put(store, model, "model")
    shard(source, f"{store.url}/out/", tp=2)
    # Two of the seven matrices of a layer are cut by their columns.
    assert store.server.bytes_received < 7_000_000
    expect_shards(store, model, tmp_path, tp=2)


def expect_shards(store: TestedStore, model: Path, tmp_path: Path, **options: Any) -> None:
    """Compare shards with those of local files; the manifest names the source."""
    shard(model, tmp_path / "out", **options)
    local = files_of(tmp_path / "out")
    found = written(store, "out/")
    assert found.keys() == local.keys()
    for name, content in local.items():
        if name.endswith(".safetensors"):
            assert found[name] == content, name


def test_a_source_that_changes_is_not_copied(store: TestedStore, model: Path) -> None:
    source = put(store, model, "model")
    content = bytearray((model / "model.safetensors").read_bytes())
    content[-1] ^= 1
    store.server.inject(
        Call(lambda: store.put("model/model.safetensors", bytes(content))), when=is_copy, times=1
    )
    with pytest.raises(WeightctlError, match="changed"):
        convert(source, f"{store.url}/out/")
    assert not [key for key in written(store, "out/") if ".partial" not in key]


@pytest.mark.parametrize(
    ("store", "refusal"),
    [
        ("s3", Answer(501, "NotImplemented")),
        ("azurite", Answer(403)),
    ],
    indirect=["store"],
)
def test_what_the_store_cannot_copy_is_sent(
    refusal: Answer, store: TestedStore, model: Path, tmp_path: Path
) -> None:
    source = put(store, model, "model")
    store.server.inject(refusal, "PUT", when=is_copy)
    convert(f"{source}/model.safetensors", f"{store.url}/out.safetensors")
    convert(model / "model.safetensors", tmp_path / "out.safetensors")
    assert store.read()["out.safetensors"] == (tmp_path / "out.safetensors").read_bytes()
    assert store.server.bytes_received > 15_000_000


def test_a_stopped_edit_is_continued(store: TestedStore, model: Path, tmp_path: Path) -> None:
    source = put(store, model, "model")
    fault = store.server.inject(Answer(403), when=is_completion)
    with pytest.raises(WeightctlError):
        convert(source, f"{store.url}/out/", max_shard_size="8MB")
    store.server.faults.remove(fault)
    store.server.forget()
    convert(source, f"{store.url}/out/", max_shard_size="8MB")
    assert store.server.exchanges("PUT", store.part) == []
    convert(model, tmp_path / "out", max_shard_size="8MB")
    assert written(store, "out/") == files_of(tmp_path / "out")
