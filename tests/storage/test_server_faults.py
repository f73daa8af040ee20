"""Each fault of the test servers has its documented effect, on the requests that it names."""

from __future__ import annotations

import http.client
import time
from typing import TYPE_CHECKING

import obstore
import pytest
from obstore.store import HTTPStore

from servers.base import (
    Answer,
    Call,
    Close,
    CutUpload,
    IgnoreRange,
    LoseAnswer,
    OtherETag,
    PlainServer,
    Redirect,
    Reset,
    Stall,
    Truncate,
)
from servers.s3 import S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obstore.store import ClientConfig

BODY = bytes(range(256)) * 1024


@pytest.fixture
def server() -> Iterator[PlainServer]:
    with PlainServer({"a": BODY}) as running:
        yield running


def ask(server: PlainServer, path: str = "/a", **headers: str) -> http.client.HTTPResponse:
    """Send a GET; the answer closes its connection at the end of the body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET", path, headers=sent | {"Connection": "close"})
    return connection.getresponse()


def statuses(server: PlainServer, count: int) -> list[int]:
    found = list[int]()
    for _ in range(count):
        with ask(server) as answer:
            found.append(answer.status)
    return found


@pytest.mark.parametrize("status", [429, 500, 503, 401, 403])
def test_a_status_is_answered(server: PlainServer, status: int) -> None:
    server.inject(Answer(status))
    assert statuses(server, 1) == [status]


def test_a_status_tells_when_to_retry(server: PlainServer) -> None:
    server.inject(Answer(503, retry_after=2))
    with ask(server) as answer:
        assert answer.headers["Retry-After"] == "2"


def test_a_status_without_a_time_to_retry(server: PlainServer) -> None:
    server.inject(Answer(503))
    with ask(server) as answer:
        assert answer.headers["Retry-After"] is None


def test_the_nth_request_is_hit(server: PlainServer) -> None:
    server.inject(Answer(503), nth={1, 3})
    assert statuses(server, 5) == [200, 503, 200, 503, 200]


def test_a_fault_happens_a_number_of_times(server: PlainServer) -> None:
    fault = server.inject(Answer(500), times=2)
    assert statuses(server, 3) == [500, 500, 200]
    assert (fault.seen, fault.done) == (3, 2)


def test_a_fault_is_for_a_method_and_a_path(server: PlainServer) -> None:
    server.put("b", b"x")
    server.inject(Answer(503), "HEAD")
    server.inject(Answer(500), "GET", path="^/b")
    assert statuses(server, 1) == [200]
    with ask(server, "/b") as answer:
        assert answer.status == 500


def test_a_fault_is_for_requests_that_a_function_accepts(server: PlainServer) -> None:
    server.inject(Answer(503), when=lambda request: "range" in request.headers)
    with ask(server, Range="bytes=0-1") as answer:
        assert answer.status == 503
    assert statuses(server, 1) == [200]


def test_a_probable_fault_hits_the_same_requests_with_the_same_seed() -> None:
    runs = list[list[int]]()
    for _ in range(2):
        with PlainServer({"a": b"x"}) as server:
            server.inject(Answer(503), probability=0.5, seed=7)
            runs.append(statuses(server, 20))
    assert runs[0] == runs[1]
    assert set(runs[0]) == {200, 503}


def test_a_reset_comes_after_some_bytes(server: PlainServer) -> None:
    server.inject(Reset(1000))
    with ask(server) as answer:
        assert len(answer.read(1000)) == 1000
        with pytest.raises(ConnectionResetError):
            answer.read()
    assert server.log[0].sent == 1000


def test_a_closed_connection_leaves_a_body_that_is_too_short(server: PlainServer) -> None:
    server.inject(Close(1000))
    with ask(server) as answer, pytest.raises(http.client.IncompleteRead) as error:
        answer.read()
    assert len(error.value.partial) == 1000


def test_a_truncated_body_agrees_with_its_length(server: PlainServer) -> None:
    server.inject(Truncate(1000))
    with ask(server, Range="bytes=0-1999") as answer:
        assert answer.read() == BODY[:1000]
        assert answer.headers["Content-Range"] == f"bytes 0-1999/{len(BODY)}"


def test_a_stall_delays_the_rest(server: PlainServer) -> None:
    server.inject(Stall(0.3, 1000))
    with ask(server) as answer:
        answer.read(1000)
        start = time.monotonic()
        assert answer.read() == BODY[1000:]
    assert time.monotonic() - start > 0.2


def test_a_stall_ends_when_the_server_stops(server: PlainServer) -> None:
    server.inject(Stall(60, 1000))
    with ask(server) as answer:
        answer.read(1000)
        start = time.monotonic()
        server.stop()
    assert time.monotonic() - start < 30


def test_every_request_waits_for_the_latency(server: PlainServer) -> None:
    server.latency = 0.1
    start = time.monotonic()
    statuses(server, 3)
    assert time.monotonic() - start > 0.29


def test_a_lost_answer_leaves_its_effect() -> None:
    with S3Server() as server:
        bucket = server.create_bucket("b", public_write=True)
        server.inject(LoseAnswer(), "PUT")
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("PUT", "/b/key", body=b"x")
        with pytest.raises(ConnectionResetError):
            connection.getresponse()
        connection.close()
        assert bucket["key"] == b"x"


def test_a_cut_upload_has_no_effect() -> None:
    with S3Server() as server:
        bucket = server.create_bucket("b", public_write=True)
        server.inject(CutUpload(1 << 20), "PUT")
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            connection.request("PUT", "/b/key", body=b"x" * (64 << 20))
        connection.close()
        assert "key" not in bucket
        assert server.bytes_received == 1 << 20


def test_an_error_has_the_format_of_s3() -> None:
    with S3Server() as server:
        server.inject(Answer(200, "InternalError"))
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", "/b/key")
        answer = connection.getresponse()
        assert answer.status == 200
        assert b"<Code>InternalError</Code>" in answer.read()
        connection.close()


def test_another_etag_is_answered(server: PlainServer) -> None:
    server.inject(OtherETag('"new"'), nth=1)
    with ask(server) as first, ask(server) as second:
        assert first.headers["ETag"] != second.headers["ETag"] == '"new"'


def test_a_precondition_on_the_former_etag_fails(server: PlainServer) -> None:
    with ask(server) as answer:
        etag = answer.headers["ETag"]
    server.inject(OtherETag())
    with ask(server, If_Match=str(etag)) as answer:
        assert answer.status == 412


def test_an_object_is_replaced_between_two_requests(server: PlainServer) -> None:
    server.inject(Call(lambda: server.put("a", b"new")), nth=1)
    with ask(server) as first, ask(server) as second:
        assert (first.read(), second.read()) == (BODY, b"new")


def test_a_range_is_ignored(server: PlainServer) -> None:
    server.inject(IgnoreRange())
    with ask(server, Range="bytes=0-3") as answer:
        assert (answer.status, answer.read()) == (200, BODY)


def test_a_redirect_to_another_host_is_followed_without_the_credentials(
    server: PlainServer,
) -> None:
    with PlainServer() as first:
        first.inject(Redirect(server.other_url))
        options: ClientConfig = {
            "allow_http": True,
            "default_headers": {"Authorization": "Bearer secret"},
        }
        store = HTTPStore(first.url, client_options=options)
        assert bytes(obstore.get(store, "a").bytes()) == BODY
        assert first.log[0].headers["authorization"] == "Bearer secret"
    assert "authorization" not in server.log[0].headers


def test_a_client_that_leaves_has_fewer_bytes_in_the_log() -> None:
    with PlainServer({"big": bytes(256 << 20)}) as server:
        with ask(server, "/big") as answer:
            answer.read(1000)
        server.stop()
        assert 1000 <= server.log[0].sent < 256 << 20


def test_a_defect_of_a_server_is_raised_at_its_end() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    server = PlainServer({"a": b"x"}).start()
    server.inject(Call(fail))
    assert statuses(server, 1) == [500]
    with pytest.raises(ZeroDivisionError):
        server.stop()
