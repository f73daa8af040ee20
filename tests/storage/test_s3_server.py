"""The S3 server of the tests works like S3, as clients of S3 expect."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any

import boto3
import obstore
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from obstore.store import S3Store

from servers.s3 import KEY, MIB, Key, S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers.s3 import Bucket

FIVE = 5 * MIB
OTHER_KEY = Key("other-access-key", "other-secret", "session-token")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server(keys=[KEY, OTHER_KEY]) as running:
        yield running


@pytest.fixture
def bucket(server: S3Server) -> Bucket:
    server.buckets.clear()
    server.forget()
    return server.create_bucket("models")


@pytest.fixture(scope="module")
def client(server: S3Server) -> Iterator[Any]:
    made = boto3_client(server)
    yield made
    made.close()


@pytest.fixture
def store(server: S3Server) -> S3Store:
    return obstore_of(server)


def boto3_client(server: S3Server, key: Key = KEY) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=server.url,
        aws_access_key_id=key.access,
        aws_secret_access_key=key.secret,
        aws_session_token=key.token,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )


def obstore_of(server: S3Server, key: Key = KEY, **config: Any) -> S3Store:
    return S3Store(
        "models",
        endpoint=server.url,
        access_key_id=key.access,
        secret_access_key=key.secret,
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
        **config,
    )


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


def begin(client: Any, key: str = "big") -> dict[str, str]:
    made = client.create_multipart_upload(Bucket="models", Key=key)
    return {"Bucket": "models", "Key": key, "UploadId": made["UploadId"]}


def put_parts(client: Any, upload: dict[str, str], *bodies: bytes) -> dict[str, Any]:
    parts = [
        {
            "PartNumber": number,
            "ETag": client.upload_part(**upload, PartNumber=number, Body=body)["ETag"],
        }
        for number, body in enumerate(bodies, start=1)
    ]
    return {"Parts": parts}


@pytest.mark.parametrize("key", ["a", "a/b c/d", "ü+~=&?#%41", "a//b", "日本"])
def test_boto3_reads_back_what_it_put(bucket: Bucket, client: Any, key: str) -> None:
    client.put_object(Bucket="models", Key=key, Body=b"hello")
    assert client.get_object(Bucket="models", Key=key)["Body"].read() == b"hello" == bucket[key]


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("key", ["a", "a/b c/d", "ü+~=&?", "日本"])
def test_obstore_reads_back_what_it_put(store: S3Store, key: str) -> None:
    obstore.put(store, key, b"hello")
    assert bytes(obstore.get(store, key).bytes()) == b"hello"


def test_a_range_has_only_its_bytes(server: S3Server, bucket: Bucket, store: S3Store) -> None:
    bucket.put("a", bytes(range(100)))
    assert bytes(obstore.get_range(store, "a", start=10, end=14)) == bytes([10, 11, 12, 13])
    assert (server.bytes_sent, server.log[0].range) == (4, "bytes=10-13")


def test_head_has_the_size_and_the_md5_as_etag(bucket: Bucket, client: Any) -> None:
    bucket.put("a", b"hello")
    head = client.head_object(Bucket="models", Key="a")
    md5 = hashlib.md5(b"hello").hexdigest()
    assert (head["ContentLength"], head["ETag"]) == (5, f'"{md5}"')


@pytest.mark.usefixtures("bucket")
def test_metadata_of_an_object_come_back(client: Any) -> None:
    client.put_object(Bucket="models", Key="a", Body=b"", Metadata={"origin": "x"})
    assert client.head_object(Bucket="models", Key="a")["Metadata"] == {"origin": "x"}


@pytest.mark.usefixtures("bucket")
def test_a_missing_key_is_no_such_key(client: Any) -> None:
    with pytest.raises(ClientError) as error:
        client.get_object(Bucket="models", Key="nope")
    assert code_of(error) == "NoSuchKey"


def test_a_missing_bucket_is_no_such_bucket(client: Any) -> None:
    with pytest.raises(ClientError) as error:
        client.get_object(Bucket="nope", Key="nope")
    assert code_of(error) == "NoSuchBucket"


def test_a_deleted_object_is_gone(bucket: Bucket, client: Any) -> None:
    bucket.put("a", b"")
    client.delete_object(Bucket="models", Key="a")
    assert "a" not in bucket


def test_a_listing_has_pages(server: S3Server, bucket: Bucket, client: Any) -> None:
    for number in range(25):
        bucket.put(f"p/{number:02}", b"")
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket="models", Prefix="p/", PaginationConfig={"PageSize": 10}
    )
    found = [each["Key"] for page in pages for each in page["Contents"]]
    assert found == [f"p/{number:02}" for number in range(25)]
    assert server.requests == 3


def test_a_delimiter_folds_keys_into_prefixes_over_all_pages(bucket: Bucket, client: Any) -> None:
    for name in ("a/1", "a/2", "b", "c/1", "c/2"):
        bucket.put(name, b"")
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket="models", Delimiter="/", PaginationConfig={"PageSize": 1}
    )
    found = [
        each.get("Key") or each["Prefix"]
        for page in pages
        for each in page.get("Contents", []) + page.get("CommonPrefixes", [])
    ]
    assert found == ["a/", "b", "c/"]


def test_a_listing_begins_after_a_key(bucket: Bucket, store: S3Store) -> None:
    for name in "abc":
        bucket.put(name, b"")
    found = obstore.list(store, offset="a").collect()
    assert [each["path"] for each in found] == ["b", "c"]


def test_the_etag_of_an_upload_in_parts_counts_the_parts(bucket: Bucket, client: Any) -> None:
    upload = begin(client)
    done = client.complete_multipart_upload(
        **upload, MultipartUpload=put_parts(client, upload, b"x" * FIVE, b"y")
    )
    digests = hashlib.md5(b"x" * FIVE).digest() + hashlib.md5(b"y").digest()
    assert done["ETag"] == f'"{hashlib.md5(digests).hexdigest()}-2"'
    assert bucket["big"] == b"x" * FIVE + b"y"


@pytest.mark.usefixtures("bucket")
def test_a_small_part_that_is_not_the_last_is_refused(client: Any) -> None:
    upload = begin(client)
    parts = put_parts(client, upload, b"x" * (FIVE - 1), b"y")
    with pytest.raises(ClientError) as error:
        client.complete_multipart_upload(**upload, MultipartUpload=parts)
    assert code_of(error) == "EntityTooSmall"


@pytest.mark.usefixtures("bucket")
def test_parts_in_the_wrong_order_are_refused(client: Any) -> None:
    upload = begin(client)
    parts = put_parts(client, upload, b"x" * FIVE, b"y")["Parts"]
    with pytest.raises(ClientError) as error:
        client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts[::-1]})
    assert code_of(error) == "InvalidPartOrder"


@pytest.mark.usefixtures("bucket")
def test_a_part_with_another_etag_is_refused(client: Any) -> None:
    upload = begin(client)
    parts = [{"PartNumber": 1, "ETag": '"' + "0" * 32 + '"'}]
    put_parts(client, upload, b"x")
    with pytest.raises(ClientError) as error:
        client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    assert code_of(error) == "InvalidPart"


@pytest.mark.usefixtures("bucket")
def test_parts_are_listed_in_pages(client: Any) -> None:
    upload = begin(client)
    put_parts(client, upload, b"x", b"yy", b"zzz")
    pages = client.get_paginator("list_parts").paginate(**upload, PaginationConfig={"PageSize": 2})
    found = [(each["PartNumber"], each["Size"]) for page in pages for each in page["Parts"]]
    assert found == [(1, 1), (2, 2), (3, 3)]


def test_an_upload_is_there_until_it_is_aborted(bucket: Bucket, client: Any) -> None:
    upload = begin(client)
    assert [*bucket.uploads] == [upload["UploadId"]]
    client.abort_multipart_upload(**upload)
    assert not bucket.uploads


@pytest.mark.usefixtures("bucket")
def test_an_aborted_upload_takes_no_parts(client: Any) -> None:
    upload = begin(client)
    client.abort_multipart_upload(**upload)
    with pytest.raises(ClientError) as error:
        client.upload_part(**upload, PartNumber=1, Body=b"x")
    assert code_of(error) == "NoSuchUpload"


def test_a_part_is_copied_from_a_range_of_an_object(bucket: Bucket, client: Any) -> None:
    bucket.put("from", bytes(range(256)) * 4)
    upload = begin(client)
    copied = client.upload_part_copy(
        **upload, PartNumber=1, CopySource="models/from", CopySourceRange="bytes=16-31"
    )
    parts = [{"PartNumber": 1, "ETag": copied["CopyPartResult"]["ETag"]}]
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    assert bucket["big"] == bytes(range(16, 32))


def test_a_range_to_copy_beyond_the_end_is_refused(bucket: Bucket, client: Any) -> None:
    bucket.put("from", b"x" * 10)
    upload = begin(client)
    with pytest.raises(ClientError) as error:
        client.upload_part_copy(
            **upload, PartNumber=1, CopySource="models/from", CopySourceRange="bytes=0-10"
        )
    assert code_of(error) == "InvalidArgument"


def test_an_object_is_copied(bucket: Bucket, store: S3Store) -> None:
    bucket.put("a b", b"hello")
    obstore.copy(store, "a b", "c")
    assert bucket["c"] == b"hello"


def test_obstore_writes_in_parts(server: S3Server, bucket: Bucket, store: S3Store) -> None:
    with obstore.open_writer(store, "big", buffer_size=FIVE) as writer:
        writer.write(b"x" * (2 * FIVE + 1))
    assert bucket["big"] == b"x" * (2 * FIVE + 1)
    assert len(server.exchanges("PUT", "partNumber=")) == 3


def test_boto3_sends_a_stream_with_a_checksum(bucket: Bucket, client: Any) -> None:
    client.upload_fileobj(io.BytesIO(b"q" * (9 * MIB)), "models", "stream")
    assert bucket["stream"] == b"q" * (9 * MIB)


def test_a_create_of_an_existing_object_is_refused(bucket: Bucket, store: S3Store) -> None:
    bucket.put("a", b"old")
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, "a", b"new", mode="create")
    assert bucket["a"] == b"old"


def test_a_write_with_another_etag_is_refused(bucket: Bucket, client: Any) -> None:
    bucket.put("a", b"old")
    with pytest.raises(ClientError) as error:
        client.put_object(Bucket="models", Key="a", Body=b"new", IfMatch='"other"')
    assert (code_of(error), bucket["a"]) == ("PreconditionFailed", b"old")


def test_a_completion_does_not_replace_an_object_that_came_in_between(
    bucket: Bucket, client: Any
) -> None:
    upload = begin(client)
    parts = put_parts(client, upload, b"mine")
    bucket.put("big", b"theirs")
    with pytest.raises(ClientError) as error:
        client.complete_multipart_upload(**upload, MultipartUpload=parts, IfNoneMatch="*")
    assert (code_of(error), bucket["big"]) == ("PreconditionFailed", b"theirs")


def test_a_read_of_a_replaced_object_with_its_former_etag_is_refused(
    bucket: Bucket, client: Any
) -> None:
    former = bucket.put("a", b"old").etag
    bucket.put("a", b"new")
    with pytest.raises(ClientError) as error:
        client.get_object(Bucket="models", Key="a", IfMatch=former)
    assert code_of(error) == "PreconditionFailed"


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize(
    ("key", "code"),
    [
        (Key(KEY.access, "wrong"), "SignatureDoesNotMatch"),
        (Key("unknown", KEY.secret), "InvalidAccessKeyId"),
        (OTHER_KEY._replace(token="expired"), "InvalidToken"),
    ],
)
def test_a_wrong_key_is_refused(server: S3Server, key: Key, code: str) -> None:
    client = boto3_client(server, key)
    with pytest.raises(ClientError) as error:
        client.list_objects_v2(Bucket="models")
    client.close()
    assert code_of(error) == code


def test_a_temporary_key_is_accepted(server: S3Server, bucket: Bucket) -> None:
    obstore.put(obstore_of(server, OTHER_KEY, session_token=OTHER_KEY.token), "a", b"x")
    assert bucket["a"] == b"x"


def test_a_public_bucket_is_read_without_a_key(server: S3Server, bucket: Bucket) -> None:
    bucket.put("a", b"x")
    bucket.public_read = True
    store = S3Store(
        "models", endpoint=server.url, skip_signature=True, client_options={"allow_http": True}
    )
    assert bytes(obstore.get(store, "a").bytes()) == b"x"
    with pytest.raises(obstore.exceptions.PermissionDeniedError):
        obstore.put(store, "b", b"x")


def test_bodies_can_be_in_files(tmp_path: Any) -> None:
    with S3Server(directory=str(tmp_path)) as server:
        bucket = server.create_bucket("models")
        store = obstore_of(server)
        obstore.put(store, "a", b"x" * (3 * MIB), use_multipart=False)
        assert bytes(obstore.get_range(store, "a", start=MIB, end=MIB + 4)) == b"xxxx"
        assert bucket.objects["a"].body.chunks[0][1:] == (0, 3 * MIB)
