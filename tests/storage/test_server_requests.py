"""The test servers read requests as clients encode them, and malformed ones."""

from __future__ import annotations

import base64
import socket
import zlib
from typing import TYPE_CHECKING

import pytest

from servers.base import Blob, PlainServer, Reset
from servers.s3 import S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from servers.base import Server
    from servers.s3 import Bucket

BODY = b"hello, world"
CHECKSUM = base64.b64encode(zlib.crc32(BODY).to_bytes(4, "big"))
SIGNED_CHUNKS = (
    b"5;chunk-signature=00\r\nhello\r\n7\r\n, world\r\n0\r\nx-amz-checksum-crc32:%s\r\n\r\n"
)


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


@pytest.fixture
def bucket(server: S3Server) -> Bucket:
    return server.create_bucket("b", public_read=True, public_write=True)


def send(server: Server, *lines: bytes, body: bytes = b"") -> bytes:
    """Send a request as bytes; return all that comes until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"\r\n".join([*lines, b"Connection: close", b"", b""]) + body)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def put_signed_chunks(server: S3Server, checksum: bytes) -> bytes:
    body = SIGNED_CHUNKS % checksum
    length = b"Content-Length: %d" % len(body)
    return send(server, b"PUT /b/a HTTP/1.1", b"Content-Encoding: aws-chunked", length, body=body)


def test_a_body_in_chunks_is_joined(server: S3Server, bucket: Bucket) -> None:
    body = b"5\r\nhello\r\n7;x=y\r\n, world\r\n0\r\n\r\n"
    send(server, b"PUT /b/a HTTP/1.1", b"Transfer-Encoding: chunked", body=body)
    assert bucket["a"] == BODY
    assert server.bytes_received == len(BODY)


def test_a_body_in_chunks_of_aws_is_joined(server: S3Server, bucket: Bucket) -> None:
    assert put_signed_chunks(server, CHECKSUM).startswith(b"HTTP/1.1 200 ")
    assert bucket["a"] == BODY


def test_a_wrong_checksum_in_a_trailer_is_refused(server: S3Server, bucket: Bucket) -> None:
    wrong = base64.b64encode(b"\0\0\0\0")
    assert b"<Code>BadDigest</Code>" in put_signed_chunks(server, wrong)
    assert "a" not in bucket


def test_chunks_of_aws_within_those_of_http_are_joined(server: S3Server, bucket: Bucket) -> None:
    inner = SIGNED_CHUNKS % CHECKSUM
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)
    encodings = b"Transfer-Encoding: chunked\r\nContent-Encoding: aws-chunked"
    send(server, b"PUT /b/a HTTP/1.1", encodings, body=body)
    assert bucket["a"] == BODY


@pytest.mark.usefixtures("bucket")
def test_a_wrong_md5_is_refused(server: S3Server) -> None:
    wrong = b"Content-MD5: " + base64.b64encode(bytes(16))
    answer = send(server, b"PUT /b/a HTTP/1.1", wrong, b"Content-Length: 1", body=b"x")
    assert b"<Code>BadDigest</Code>" in answer


def test_a_client_that_leaves_within_a_body_stores_nothing(
    server: S3Server, bucket: Bucket
) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"PUT /b/a HTTP/1.1\r\nContent-Length: 100\r\n\r\nhello")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert "a" not in bucket
    assert server.bytes_received == 5


@pytest.mark.parametrize(
    "lines", [(b"nonsense",), (b"GET / HTTP/1.1", b"no colon"), (b"GET /" + b"x" * 70_000,)]
)
def test_a_malformed_request_is_400(server: S3Server, lines: tuple[bytes, ...]) -> None:
    assert send(server, *lines).startswith(b"HTTP/1.1 400 ")


def test_requests_that_come_at_once_are_answered_in_order(server: S3Server, bucket: Bucket) -> None:
    bucket.put("a", b"first")
    bucket.put("b", b"second")
    answer = send(server, b"GET /b/a HTTP/1.1", b"", b"GET /b/b HTTP/1.1")
    assert answer.index(b"first") < answer.index(b"second")


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize(("start", "stop"), [(0, 9), (2, 7), (3, 6), (4, 4), (8, 9)])
def test_a_cut_of_chunks_has_their_bytes(
    tmp_path: Path, start: int, stop: int, *, in_file: bool
) -> None:
    (tmp_path / "f").write_bytes(b"456")
    middle = Blob.of_file(str(tmp_path / "f")) if in_file else Blob([b"456"])
    blob = Blob.joined([Blob([b"123"]), middle, Blob([b"789"])])
    assert bytes(blob.cut(start, stop)) == b"123456789"[start:stop]


def test_a_removed_file_is_still_sent(tmp_path: Path) -> None:
    content = b"x" * 300_000
    (tmp_path / "f").write_bytes(content)
    blob = Blob.of_file(str(tmp_path / "f"))
    (tmp_path / "f").unlink()
    with PlainServer({"a": blob}) as server:
        assert send(server, b"GET /a HTTP/1.1").endswith(content)


def test_a_reset_is_seen_by_a_client_that_uploads(server: S3Server, bucket: Bucket) -> None:
    server.inject(Reset(), "PUT")
    lines = (b"PUT /b/a HTTP/1.1", b"Content-Length: 1")
    with pytest.raises(ConnectionResetError):
        send(server, *lines, body=b"x")
    assert bucket["a"] == b"x"
