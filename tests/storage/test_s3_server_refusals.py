"""The S3 server of the tests refuses the same requests as S3, which clients do not send."""

from __future__ import annotations

import hashlib
import http.client
from typing import TYPE_CHECKING

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from servers.s3 import KEY, S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers.s3 import Bucket


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


@pytest.fixture(autouse=True)
def bucket(server: S3Server) -> Bucket:
    return server.create_bucket("b")


def send(
    server: S3Server, method: str, path: str, body: bytes = b"", **changed: str
) -> tuple[int, bytes]:
    """Send a signed request; `changed` are headers that are set after it was signed."""
    headers = {"X-Amz-Content-SHA256": hashlib.sha256(b"signed").hexdigest()}
    request = AWSRequest(method, server.url + path, headers=headers, data=b"signed")
    S3SigV4Auth(Credentials(KEY.access, KEY.secret), "s3", "us-east-1").add_auth(request)
    sent = dict(request.headers.items())
    sent |= {name.replace("_", "-"): value for name, value in changed.items()}
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request(method, path, body=body, headers=sent | {"Connection": "close"})
    with connection.getresponse() as answer:
        return answer.status, answer.read()


def test_the_body_that_was_signed_is_stored(server: S3Server, bucket: Bucket) -> None:
    assert send(server, "PUT", "/b/a", b"signed")[0] == 200
    assert bucket["a"] == b"signed"


def test_another_body_than_the_signed_one_is_refused(server: S3Server, bucket: Bucket) -> None:
    assert b"XAmzContentSHA256Mismatch" in send(server, "PUT", "/b/a", b"other!")[1]
    assert "a" not in bucket


def test_a_date_of_long_ago_is_refused(server: S3Server) -> None:
    answer = send(server, "PUT", "/b/a", b"signed", X_Amz_Date="20200101T000000Z")
    assert b"RequestTimeTooSkewed" in answer[1]


def test_a_header_of_amazon_that_is_not_signed_is_refused(server: S3Server) -> None:
    answer = send(server, "PUT", "/b/a", b"signed", x_amz_copy_source="/b/other")
    assert b"must be signed" in answer[1]


@pytest.mark.parametrize("number", ["0", "10001", "x"])
def test_a_part_number_out_of_range_is_refused(
    server: S3Server, bucket: Bucket, number: str
) -> None:
    upload = bucket.begin("a", {})
    path = f"/b/a?partNumber={number}&uploadId={upload.id}"
    assert b"InvalidArgument" in send(server, "PUT", path, b"signed")[1]


def test_a_write_unless_another_etag_exists_is_not_implemented(server: S3Server) -> None:
    assert send(server, "PUT", "/b/a", b"signed", If_None_Match='"x"')[0] == 501


def test_a_replacement_of_a_missing_object_is_404(server: S3Server) -> None:
    assert send(server, "PUT", "/b/a", b"signed", If_Match='"x"')[0] == 404
