"""Edits between objects of one store: what does not change is copied by the store, and not sent.

moto and azurite are servers that others wrote. Google Cloud Storage copies whole objects only, and
s3rver copies nothing.
"""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from each import usual
from servers.base import Answer, Call
from tested_stores import serve
from weightctl import convert, shard
from weightctl.errors import WeightctlError
from weightctl.storage.traffic import TRAFFIC

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from pathlib import Path

    from servers.base import Request
    from tested_stores import TestedStore

STORES = usual(["s3"], ["s3", "moto", "azurite"])
SIDE = 512
LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": SIDE,
    "intermediate_size": SIDE,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": SIDE,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
MIXTRAL: Mapping[str, Any] = {
    **LLAMA,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


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
    """A Llama of 15 megabytes."""
    layer = [f"self_attn.{each}_proj" for each in "qkvo"]
    layer += [f"mlp.{each}_proj" for each in ("gate", "up", "down")]
    return write_model(tmp_path_factory.mktemp("models") / "model", LLAMA, layer)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Mixtral of 33 megabytes."""
    layer = [f"self_attn.{each}_proj" for each in "qkvo"]
    layer += [
        f"block_sparse_moe.experts.{expert}.{each}"
        for expert in range(4)
        for each in ("w1", "w2", "w3")
    ]
    return write_model(tmp_path_factory.mktemp("models") / "mixture", MIXTRAL, layer)


def write_model(path: Path, config: Mapping[str, Any], layer: Iterable[str]) -> Path:
    """Write a model of square matrices, of which each has a mebibyte."""
    path.mkdir()
    rng = np.random.default_rng(0)
    names = [f"model.layers.{number}.{name}" for number in range(2) for name in layer]
    shapes = {f"{name}.weight": (SIDE, SIDE) for name in ["model.embed_tokens", *names]}
    norms = ["input_layernorm", "post_attention_layernorm"]
    names = [f"model.layers.{number}.{name}" for number in range(2) for name in norms]
    shapes |= {f"{name}.weight": (SIDE,) for name in ["model.norm", *names]}
    if "num_local_experts" in config:
        shapes |= {
            f"model.layers.{number}.block_sparse_moe.gate.weight": (4, SIDE) for number in range(2)
        }
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    save_file(arrays, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return path


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
