"""Outputs in object stores: complete or absent, like local ones, and continued after a stop."""

from __future__ import annotations

import json
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

from each import usual
from servers.base import Answer, Call, CutUpload, LoseAnswer, Reset
from servers.s3 import S3Server
from tested_stores import BUCKET, PART, put_files, serve, serve_s3
from weightctl import convert, open_weights, shard
from weightctl.errors import OutputError, WeightctlError
from weightctl.storage.base import FileRange
from weightctl.storage.files import open_reader
from weightctl.storage.location import store_of
from weightctl.system.temporary import JOURNAL, temporary_name
from weightctl.write import journal, object_uploads
from weightctl.write.executors.destinations import uploads_of
from weightctl.write.object_parts import cut_object
from weightctl.write.object_uploads import find_kept_uploads, find_shared_uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from servers.base import Request
    from servers.s3 import Bucket
    from tested_stores import TestedStore
    from weightctl.storage.base import Uploads


S3 = f"s3://{BUCKET}"
SHAPES = {f"model.layers.{number}.mlp.weight": (256, 256) for number in range(12)}


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Generator[S3Server, None, None]:
    monkeypatch.setattr(journal, "BEGIN_AFTER", 0.0)
    with serve_s3(monkeypatch) as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server) -> Bucket:
    return s3.buckets[BUCKET]


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


def visible(bucket: Bucket) -> list[str]:
    """Return the objects of a bucket; a stopped run leaves only what its journal names."""
    return [key for key in bucket if ".partial.journal-" not in key]


OUTPUTS = {
    "a file": ("out.safetensors", {}),
    "a directory": ("out/", {"dtype": "bf16"}),
    "a set of parts": ("out/", {"max_shard_size": "1MB"}),
    "GGUF": ("out.gguf", {"quant": "Q8_0", "names": "keep"}),
    "aligned GGUF": ("out.gguf", {"align": 65536, "names": "keep"}),
    "PyTorch": ("out.pt", {"dtype": "f16"}),
    "parts of a file": ("out.gguf", {"max_shard_size": "2MB", "names": "keep"}),
}


def test_shards_have_the_bytes_of_local_ones(
    s3: S3Server, bucket: Bucket, tiny_llama: Path, tmp_path: Path
) -> None:
    source = put_files(s3, tiny_llama, "llama")
    shard(tiny_llama, tmp_path / "ranks", tp=2)
    shard(source, f"{S3}/ranks", tp=2)
    files = [path for path in (tmp_path / "ranks").rglob("*") if path.is_file()]
    assert len([key for key in bucket if key.startswith("ranks")]) == len(files)
    for path in files:
        if path.suffix == ".safetensors":
            assert bucket[str(path.relative_to(tmp_path))] == path.read_bytes()
    whole = open_weights(f"{S3}/ranks")
    assert whole.header.tensors.keys() == open_weights(tiny_llama).header.tensors.keys()


@pytest.mark.parametrize("name", ["out.safetensors", "small.safetensors"])
def test_an_object_that_appears_during_the_run_is_not_replaced(
    name: str, s3: S3Server, bucket: Bucket, model: Path
) -> None:
    s3.inject(Call(lambda: bucket.put(name, b"mine")), "PUT", times=1)
    with pytest.raises(OutputError, match="exists"):
        convert(model, f"{S3}/{name}", include="*layers.1.*" if "small" in name else "*")
    assert bucket[name] == b"mine"


def test_the_old_index_goes_before_new_parts_come(
    s3: S3Server, bucket: Bucket, model: Path
) -> None:
    out = f"{S3}/out/"
    convert(model, out, max_shard_size="2MB")
    old = {*bucket}
    s3.forget()
    convert(model, out, max_shard_size="1MB", force=True)
    index = "out/model.safetensors.index.json"
    order = [
        (each.method, each.path) for each in s3.log if each.method in {"PUT", "POST", "DELETE"}
    ]
    gone = order.index(("DELETE", f"/{BUCKET}/{index}"))
    back = order.index(("PUT", f"/{BUCKET}/{index}"))
    completed = [
        number
        for number, each in enumerate(order)
        if each[0] == "POST" and "uploads" not in each[1] and number > gone
    ]
    assert completed
    assert all(gone < number < back for number in completed)
    named = set(json.loads(bucket[index])["weight_map"].values())
    assert {key for key in bucket if "-of-" in key} == {f"out/{name}" for name in named}
    assert not {key for key in old if "-of-" in key} & {*bucket}


@pytest.mark.parametrize("nth", usual([0, 3], [0, 3, 11]))
def test_a_run_that_fails_leaves_nothing_visible_and_is_continued(
    nth: int,
    s3: S3Server,
    bucket: Bucket,
    model: Path,
    expected: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "_FLUSH_AFTER", 0.0)
    # Until then, parts that have arrived are in the journal.
    fault = s3.inject(Answer(403, pause=0.5), "PUT", path="partNumber", nth=range(nth, 1000))
    with pytest.raises(OutputError, match="access is denied") as caught:
        convert(model, f"{S3}/out.safetensors", threads=1)
    assert visible(bucket) == []
    s3.faults.remove(fault)
    sent = sum(upload.nbytes for upload in caught_parts(bucket))
    s3.forget()
    done = convert(model, f"{S3}/out.safetensors", threads=1)
    assert bucket["out.safetensors"] == expected
    assert [*bucket] == ["out.safetensors"]
    assert not bucket.uploads
    if nth:
        assert "continues" in caught.value.hint
        again = sum(each.received for each in s3.exchanges("PUT", "partNumber"))
        # Parts that were under way may have arrived after the error.
        assert again <= len(bucket["out.safetensors"]) - sent
        assert done.saved is not None


def caught_parts(bucket: Bucket) -> list[memoryview]:
    return [
        memoryview(bytes(part.body))
        for upload in bucket.uploads.values()
        for part in upload.parts.values()
    ]


def test_another_plan_starts_over_and_says_so(
    s3: S3Server, bucket: Bucket, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_uploads, "_ENDED_AFTER", -1.0)
    fault = s3.inject(Answer(403, pause=0.5), "PUT", path="partNumber", nth=range(3, 1000))
    with pytest.raises(OutputError):
        convert(model, f"{S3}/out.safetensors", threads=1)
    s3.faults.remove(fault)
    done = convert(model, f"{S3}/out.safetensors", dtype="bf16")
    assert done.saved is not None
    assert done.saved.started_over == "the plan has changed"
    assert [*bucket] == ["out.safetensors"]
    assert not bucket.uploads
    header = open_weights(f"{S3}/out.safetensors").header
    assert {info.encoding.name for info in header.tensors.values()} == {"BF16"}


def test_a_run_that_stopped_while_it_published_is_completed(
    s3: S3Server, bucket: Bucket, model: Path
) -> None:
    fault = s3.inject(Answer(403), "PUT", path="index.json")
    with pytest.raises(OutputError):
        convert(model, f"{S3}/out/", max_shard_size="2MB")
    s3.faults.remove(fault)
    s3.forget()
    convert(model, f"{S3}/out/", max_shard_size="2MB")
    assert not s3.exchanges("PUT", "partNumber")
    assert not bucket.uploads
    assert not [key for key in bucket if "journal" in key]
    assert open_weights(f"{S3}/out").header.tensors.keys() == SHAPES.keys()


def test_a_final_error_leaves_nothing(s3: S3Server, bucket: Bucket, tmp_path: Path) -> None:
    rows = np.ones((64, 256), np.float32)
    rows[63, 255] = np.inf
    save_file({"model.layers.0.mlp.weight": rows}, tmp_path / "bad.safetensors")
    with pytest.raises(WeightctlError, match="finite"):
        convert(tmp_path / "bad.safetensors", f"{S3}/out.gguf", quant="Q4_K")
    assert [*bucket] == []
    assert not bucket.uploads
    assert s3.failures == []


def test_a_bucket_is_not_a_place_for_an_output(s3: S3Server, model: Path) -> None:
    with pytest.raises(OutputError, match="whole bucket") as caught:
        convert(model, S3)
    assert f"{S3}/model" in caught.value.hint
    assert s3.requests == 0


def test_a_web_server_cannot_be_written(model: Path) -> None:
    with pytest.raises(OutputError, match="cannot write to https:// URLs"):
        convert(model, "https://127.0.0.1:1/out.gguf")


def test_an_older_object_is_not_taken_for_one_that_was_published(
    s3: S3Server, bucket: Bucket, model: Path
) -> None:
    convert(model, f"{S3}/out/", max_shard_size="2MB")
    first = next(key for key in bucket if "00001-of" in key)
    expected = bucket[first]
    fault = s3.inject(Answer(403), "POST", path="uploadId")
    with pytest.raises(OutputError):
        convert(model, f"{S3}/out/", max_shard_size="2MB", force=True)
    s3.faults.remove(fault)
    # A rule of the bucket ends the uploads, and another object of the same size is there.
    for upload in list(bucket.uploads.values()):
        bucket.abort(upload)
    bucket.put(first, bytes(len(expected)))
    bucket.objects[first].modified -= 3600
    convert(model, f"{S3}/out/", max_shard_size="2MB", force=True)
    assert bucket[first] == expected


def test_a_run_that_stopped_while_it_removed_its_journal_is_completed(
    s3: S3Server, bucket: Bucket, model: Path
) -> None:
    fault = s3.inject(Answer(403), "DELETE", nth=range(1, 100))
    convert(model, f"{S3}/out/", max_shard_size="2MB")
    s3.faults.remove(fault)
    assert [key for key in bucket if "journal" in key]
    s3.forget()
    convert(model, f"{S3}/out/", max_shard_size="2MB")
    assert not s3.exchanges("PUT", "partNumber")
    assert not [key for key in bucket if "journal" in key]


def test_a_journal_that_is_removed_while_it_is_read_is_not_there(
    monkeypatch: pytest.MonkeyPatch, s3: S3Server
) -> None:
    out = f"{S3}/out.gguf"
    uploads = uploads_of(out)
    uploads.put(f"{temporary_name(out, '0' * 8)}{JOURNAL}-00000001", b"{}\n", force=True)
    read = type(uploads).read

    def remove_and_read(self: Uploads, url: str) -> bytes:
        self.delete([url])
        return read(self, url)

    monkeypatch.setattr(type(uploads), "read", remove_and_read)
    assert object_uploads.find_stopped_upload(out, uploads, None).objects == ()
    assert not [*s3.buckets[BUCKET]]


# Outputs in each object store: the same bytes, whole or not there, and continued after a stop.


CONDITIONAL = ["s3", "gs", "azurite", "moto"]
USUAL = CONDITIONAL[:3]
ALL = usual(USUAL, [*CONDITIONAL, "s3rver"])


@pytest.fixture(params=usual(USUAL, CONDITIONAL))
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


@pytest.mark.parametrize(
    ("store", "kind"),
    usual(
        [*product(["s3"], OUTPUTS), ("gs", "a file"), ("azurite", "a set of parts")],
        product([*CONDITIONAL, "s3rver"], OUTPUTS),
    ),
    indirect=["store"],
)
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


FAULTS = {
    "503": Answer(503),
    "a reset": Reset(),
    "a cut upload": CutUpload(100),
    "a lost answer": LoseAnswer(),
}


@pytest.mark.parametrize(("store", "method", "fault"), usual([
    ("s3", "PUT", "503"), ("s3", "POST", "a lost answer"),
    ("gs", "POST", "503"), ("azurite", "PUT", "503"), ("azurite", "PUT", "a lost answer"),
], product(CONDITIONAL, ["PUT", "POST"], FAULTS)), indirect=["store"])  # fmt: skip
def test_a_request_that_fails_is_repeated(
    fault: str,
    method: str,
    store: TestedStore,
    model: Path,
    expected: bytes,
) -> None:
    store.server.inject(FAULTS[fault], method, nth={0, 3, 14})
    convert(model, f"{store.url}/out.safetensors", threads=1)
    assert store.read() == {"out.safetensors": expected}


def test_a_stopped_run_is_continued(
    store: TestedStore,
    model: Path,
    expected: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "_FLUSH_AFTER", 0.0)
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
    monkeypatch.setattr(object_uploads, "_ENDED_AFTER", -1.0)
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


@pytest.mark.parametrize("look", [find_kept_uploads, find_shared_uploads])
@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_looking_for_a_stopped_run_removes_nothing(
    look: Callable[..., object],
    store: TestedStore,
    uploads: Uploads,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_uploads, "_ENDED_AFTER", -1.0)
    path = f"{store.url}/out.safetensors"
    left = f"{temporary_name(path, '0123abcd')}{JOURNAL}-00000001"
    uploads.put(left, b"not a journal", force=True)
    assert not look(SimpleNamespace(path=path), lambda: None)
    assert len(store.read()) == 1
    object_uploads.find_stopped_upload(path, uploads, None)
    assert not store.read()


def test_a_long_range_is_copied_in_parts_of_at_most_64_mib(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(201 << 20)
    source = FileRange(open_reader(str(tmp_path / "large")), 1 << 20, 200 << 20)
    parts = cut_object(source.nbytes, [(0, source)], size=8 << 20, least=5 << 20)
    assert [(part.start >> 20, part.stop >> 20) for part in parts] == [
        (0, 64), (64, 128), (128, 192), (192, 200),
    ]  # fmt: skip
    assert [part.source and part.source.offset >> 20 for part in parts] == [1, 65, 129, 193]
