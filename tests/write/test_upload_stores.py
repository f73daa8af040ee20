"""Outputs in each object store: the same bytes, whole or not there, and continued after a stop.

moto, s3rver and azurite are servers that others wrote. s3rver has neither conditional writes nor
lists of parts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

from servers.base import Answer, LoseAnswer, Reset
from servers.s3 import S3Server
from tested_stores import BUCKET, PART, serve
from weightctl import convert, open_weights
from weightctl.errors import OutputError
from weightctl.storage.location import store_of
from weightctl.write import journal
from weightctl.write.objects import object_journal, stopped_uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from servers.base import Request
    from tested_stores import TestedStore
    from weightctl.storage.base import Uploads

SHAPES = {f"model.layers.{number}.mlp.weight": (256, 256) for number in range(12)}
CONDITIONAL = ["s3", "gs", "azurite", "moto"]
ALL = [*CONDITIONAL, "s3rver"]


@pytest.fixture(params=CONDITIONAL)
def store(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    ports: Callable[[str], int],
) -> Generator[TestedStore, None, None]:
    monkeypatch.setattr(journal, "BEGIN_AFTER", 0.0)
    with serve(request.param, monkeypatch, ports) as found:
        yield found


@pytest.fixture
def uploads(store: TestedStore) -> Uploads:
    found = store_of(store.url)
    assert found is not None
    return found.uploads(f"{store.url}/x")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with three megabytes of matrices, a config and a tokenizer."""
    path = tmp_path_factory.mktemp("models") / "model"
    path.mkdir()
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}
    save_file(arrays, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"torch_dtype": "float32"}))
    (path / "tokenizer.json").write_text("{}")
    return path


@pytest.fixture(scope="module")
def expected(model: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a copy of the model on a disk."""
    path = tmp_path_factory.mktemp("copies") / "out.safetensors"
    convert(model, path)
    return path.read_bytes()


OUTPUTS = {
    "a file": ("out.safetensors", {}),
    "a set of parts": ("out/", {"max_shard_size": "1MB"}),
    "aligned GGUF": ("out.gguf", {"align": 65536, "names": "keep"}),
}


@pytest.mark.parametrize("store", ALL, indirect=True)
@pytest.mark.parametrize("kind", OUTPUTS)
def test_an_output_has_the_bytes_of_a_local_one(
    kind: str, store: TestedStore, model: Path, tmp_path: Path
) -> None:
    name, options = OUTPUTS[kind]
    (tmp_path / "here").mkdir()
    convert(model, f"{tmp_path}/here/{name}", **options)
    # s3rver ignores the condition, and answers as if the object did not exist.
    convert(model, f"{store.url}/here/{name}", **options)
    local = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert store.read() == local


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_a_remote_checkpoint_is_a_local_one(store: TestedStore, model: Path) -> None:
    for path in model.iterdir():
        store.put(f"a/b c/{path.name}", path.read_bytes())
    remote, local = open_weights(f"{store.url}/a/b c"), open_weights(model)
    assert remote.header.tensors == local.header.tensors
    for name in SHAPES:
        assert bytes(remote[name].data().view()) == bytes(local[name].data().view())


def test_an_object_is_not_replaced_without_force(
    store: TestedStore, model: Path, expected: bytes
) -> None:
    store.put("out.safetensors", b"mine")
    with pytest.raises(OutputError, match="exists"):
        convert(model, f"{store.url}/out.safetensors")
    assert store.read() == {"out.safetensors": b"mine"}
    convert(model, f"{store.url}/out.safetensors", force=True)
    assert store.read() == {"out.safetensors": expected}


def test_an_object_that_appears_before_an_upload_is_complete_is_not_replaced(
    store: TestedStore, uploads: Uploads
) -> None:
    path = f"{store.url}/out"
    upload = uploads.create(path)
    parts = {
        number: uploads.put_part(path, upload, number, bytes([number]) * PART) for number in (2, 1)
    }
    store.put("out", b"mine")
    with pytest.raises(OutputError, match="exists"):
        uploads.complete(path, upload, parts, force=False)
    assert store.read()["out"] == b"mine"


def test_a_small_object_is_not_replaced_without_force(store: TestedStore, uploads: Uploads) -> None:
    path = f"{store.url}/out"
    store.put("out", b"mine")
    with pytest.raises(OutputError, match="exists"):
        uploads.put(path, b"theirs", force=False)
    assert store.read() == {"out": b"mine"}
    uploads.put(path, b"theirs", force=True)
    assert store.read() == {"out": b"theirs"}


def test_parts_of_an_upload_are_listed_until_it_is_complete(
    store: TestedStore, uploads: Uploads
) -> None:
    path = f"{store.url}/a/out"
    upload = uploads.create(path)
    other = uploads.create(path)
    uploads.put_part(path, other, 1, b"other")
    parts = {number: uploads.put_part(path, upload, number, b"a" * PART) for number in (3, 1)}
    assert uploads.list_parts(path, upload) == parts
    uploads.complete(path, upload, parts, force=False)
    assert uploads.list_parts(path, upload) is None
    assert store.read() == {"a/out": b"a" * (2 * PART)}


def test_what_does_not_exist_is_deleted_without_an_error(
    store: TestedStore, uploads: Uploads
) -> None:
    store.put("a", b"1")
    uploads.delete([f"{store.url}/b", f"{store.url}/a"])
    assert store.read() == {}


def test_objects_are_listed_by_the_start_of_their_names(
    store: TestedStore, uploads: Uploads
) -> None:
    for name in ("p/a", "p/abc", "p/b", "q/a"):
        store.put(name, name.encode())
    found = uploads.list_objects(f"{store.url}/p/a")
    assert {url: each.nbytes for url, each in found.items()} == {
        f"{store.url}/p/a": 3,
        f"{store.url}/p/abc": 5,
    }
    assert uploads.read(f"{store.url}/p/abc") == b"p/abc"


FAULTS = {"503": Answer(503), "a reset": Reset(), "a lost answer": LoseAnswer()}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_a_request_that_fails_is_repeated(
    fault: str, method: str, store: TestedStore, model: Path, expected: bytes
) -> None:
    store.server.inject(FAULTS[fault], method, nth={0, 3, 14})
    convert(model, f"{store.url}/out.safetensors", threads=1)
    assert store.read() == {"out.safetensors": expected}


def test_a_stopped_run_is_continued(
    store: TestedStore, model: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_journal, "_FLUSH_AFTER", 0.0)
    fault = store.server.inject(Answer(403, pause=0.5), "PUT", path=store.part, nth=range(5, 1000))
    with pytest.raises(OutputError, match="access is denied") as caught:
        convert(model, f"{store.url}/out.safetensors", threads=1)
    assert "continues" in caught.value.hint
    assert "out.safetensors" not in store.read()
    store.server.faults.remove(fault)
    store.server.forget()
    convert(model, f"{store.url}/out.safetensors", threads=1)
    again = sum(each.received for each in store.server.exchanges("PUT", store.part))
    assert again == len(expected) - 5 * PART
    assert store.read() == {"out.safetensors": expected}


@pytest.mark.parametrize("store", ["s3", "gs"], indirect=True)
def test_uploads_of_another_plan_are_ended(
    store: TestedStore, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopped_uploads, "_ENDED_AFTER", -1.0)
    fault = store.server.inject(Answer(403, pause=0.5), "PUT", path=store.part, nth=range(5, 1000))
    with pytest.raises(OutputError):
        convert(model, f"{store.url}/out/", max_shard_size="1MB", threads=1)
    store.server.faults.remove(fault)
    convert(model, f"{store.url}/out/", dtype="bf16")
    assert isinstance(store.server, S3Server)
    assert not store.server.buckets[BUCKET].uploads


@pytest.mark.parametrize("store", ["gs"], indirect=True)
def test_what_a_stopped_completion_left_is_removed(
    store: TestedStore, model: Path, expected: bytes
) -> None:
    def is_copy(request: Request) -> bool:
        return "x-goog-copy-source" in request.headers

    fault = store.server.inject(Answer(403), "PUT", when=is_copy)
    with pytest.raises(OutputError, match="access is denied"):
        convert(model, f"{store.url}/out.safetensors")
    assert "out.safetensors" not in store.read()
    store.server.faults.remove(fault)
    convert(model, f"{store.url}/out.safetensors")
    assert store.read() == {"out.safetensors": expected}


@pytest.mark.parametrize("store", ["gs"], indirect=True)
def test_a_copy_whose_answer_is_lost_is_ours(
    store: TestedStore, model: Path, expected: bytes
) -> None:
    def is_copy(request: Request) -> bool:
        return "x-goog-copy-source" in request.headers

    store.server.inject(LoseAnswer(), "PUT", when=is_copy, times=1)
    convert(model, f"{store.url}/out.safetensors")
    assert store.read() == {"out.safetensors": expected}


def test_a_small_object_whose_answer_is_lost_is_ours(store: TestedStore, uploads: Uploads) -> None:
    store.server.inject(LoseAnswer(), "PUT", times=1)
    uploads.put(f"{store.url}/a", b"mine", force=False)
    assert store.read() == {"a": b"mine"}


def test_a_completion_whose_answer_is_lost_is_ours(store: TestedStore, uploads: Uploads) -> None:
    path = f"{store.url}/a"
    upload = uploads.create(path)
    parts = {number: uploads.put_part(path, upload, number, b"a" * PART) for number in (1, 2)}
    store.server.inject(LoseAnswer(), path="uploadId|blocklist|copy", times=1)
    uploads.complete(path, upload, parts, force=False)
    assert store.read() == {"a": b"a" * (2 * PART)}
