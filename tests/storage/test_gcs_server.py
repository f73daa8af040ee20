"""The Google Cloud Storage server of the tests works as obstore's client expects."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING, Any

import obstore
import pytest
from obstore.store import GCSStore

from servers.s3 import MIB, TOKEN, GCSServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obstore import UpdateVersion

    from servers.s3 import Bucket


@pytest.fixture
def server() -> Iterator[GCSServer]:
    with GCSServer() as running:
        yield running


@pytest.fixture
def bucket(server: GCSServer) -> Bucket:
    return server.create_bucket("models")


@pytest.fixture
def store(server: GCSServer) -> GCSStore:
    return store_of(server, bearer_token=TOKEN)


def store_of(server: GCSServer, **config: Any) -> GCSStore:
    return GCSStore(
        "models",
        **({"base_url": server.url} | config),
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("key", ["a", "a/b c/d", "ü+~=&?", "日本"])
def test_an_object_is_read_back(store: GCSStore, key: str) -> None:
    obstore.put(store, key, b"hello")
    assert bytes(obstore.get(store, key).bytes()) == b"hello"


def test_a_range_has_only_its_bytes(server: GCSServer, bucket: Bucket, store: GCSStore) -> None:
    bucket.put("a", bytes(range(100)))
    assert bytes(obstore.get_range(store, "a", start=10, end=14)) == bytes([10, 11, 12, 13])
    assert server.bytes_sent == 4


def test_each_write_has_a_later_generation(bucket: Bucket, store: GCSStore) -> None:
    first = obstore.put(store, "a", b"1")["version"]
    second = obstore.put(store, "a", b"2")["version"]
    assert int(str(first)) < int(str(second)) == bucket.objects["a"].generation


def test_head_has_the_generation_as_version(bucket: Bucket, store: GCSStore) -> None:
    stored = bucket.put("a", b"1")
    assert obstore.head(store, "a")["version"] == str(stored.generation)


def test_a_create_of_an_existing_object_is_refused(bucket: Bucket, store: GCSStore) -> None:
    bucket.put("a", b"old")
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, "a", b"new", mode="create")
    assert bucket["a"] == b"old"


def test_an_update_of_a_former_generation_is_refused(bucket: Bucket, store: GCSStore) -> None:
    former = obstore.put(store, "a", b"old")
    expected: UpdateVersion = {"e_tag": former["e_tag"], "version": former["version"]}
    bucket.put("a", b"theirs")
    with pytest.raises(obstore.exceptions.PreconditionError):
        obstore.put(store, "a", b"new", mode=expected)
    assert bucket["a"] == b"theirs"


def test_an_object_is_written_in_parts(server: GCSServer, bucket: Bucket, store: GCSStore) -> None:
    with obstore.open_writer(store, "big", buffer_size=5 * MIB) as writer:
        writer.write(b"x" * (10 * MIB + 1))
    assert bucket["big"] == b"x" * (10 * MIB + 1)
    assert len(server.exchanges("PUT", "partNumber=")) == 3


def test_an_object_is_copied(bucket: Bucket, store: GCSStore) -> None:
    bucket.put("a b", b"hello")
    obstore.copy(store, "a b", "c")
    assert bucket["c"] == b"hello"


def test_a_copy_does_not_replace_an_object(bucket: Bucket, store: GCSStore) -> None:
    bucket.put("a", b"new")
    bucket.put("b", b"old")
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.copy(store, "a", "b", overwrite=False)
    assert bucket["b"] == b"old"


def test_objects_are_listed_and_deleted(bucket: Bucket, store: GCSStore) -> None:
    for name in ("p/a", "p/b", "q"):
        bucket.put(name, b"")
    listed = [each["path"] for each in obstore.list(store, prefix="p").collect()]
    obstore.delete(store, listed)
    assert (listed, list(bucket)) == (["p/a", "p/b"], ["q"])


@pytest.mark.usefixtures("bucket")
def test_an_upload_in_parts_takes_no_condition(server: GCSServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    headers = {"Authorization": f"Bearer {TOKEN}", "x-goog-if-generation-match": "0"}
    connection.request("POST", "/models/a?uploads", headers=headers)
    assert connection.getresponse().status == 400
    connection.close()


@pytest.mark.usefixtures("bucket")
def test_a_deletion_of_what_does_not_exist_is_an_error(store: GCSStore, server: GCSServer) -> None:
    with pytest.raises(FileNotFoundError):
        obstore.delete(store, "a")
    assert [each.status for each in server.exchanges("DELETE")] == [404]


@pytest.mark.usefixtures("bucket")
def test_a_wrong_token_is_refused(server: GCSServer) -> None:
    with pytest.raises(obstore.exceptions.UnauthenticatedError):
        obstore.put(store_of(server, bearer_token="wrong"), "a", b"x")


def test_a_public_bucket_is_read_without_a_token(server: GCSServer, bucket: Bucket) -> None:
    bucket.put("a", b"x")
    store = store_of(server, skip_signature=True)
    with pytest.raises(obstore.exceptions.PermissionDeniedError):
        obstore.get(store, "a")
    bucket.public_read = True
    assert bytes(obstore.get(store, "a").bytes()) == b"x"


def test_a_fake_service_account_names_the_server(server: GCSServer, bucket: Bucket) -> None:
    bucket.put("a", b"x")
    bucket.public_read = True
    store = GCSStore(
        "models",
        service_account_key=server.service_account,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    assert bytes(obstore.get(store, "a").bytes()) == b"x"
