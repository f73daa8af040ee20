"""The plain HTTP server of the tests serves ranges and checks preconditions."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING

import obstore
import pytest
from obstore.store import HTTPStore

from servers.base import Blob, PlainServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BODY = bytes(range(256)) * 8


@pytest.fixture
def server() -> Iterator[PlainServer]:
    with PlainServer({"dir/a.bin": BODY}) as running:
        yield running


def ask(
    server: PlainServer, method: str = "GET", path: str = "/dir/a.bin", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Send a request; an underscore in a header's name is a hyphen."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=sent)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body


def test_get_has_the_whole_body(server: PlainServer) -> None:
    status, headers, body = ask(server)
    assert (status, headers["content-length"], body) == (200, "2048", BODY)


def test_head_has_the_size_and_no_body(server: PlainServer) -> None:
    status, headers, body = ask(server, "HEAD")
    assert (status, headers["content-length"], body) == (200, "2048", b"")
    assert server.bytes_sent == 0


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=5-9", 5, 10),
        ("bytes=2000-", 2000, 2048),
        ("bytes=-8", 2040, 2048),
        ("bytes=-5000", 0, 2048),
        ("bytes=2040-9999", 2040, 2048),
    ],
)
def test_a_range_is_cut_to_the_object(
    server: PlainServer, header: str, start: int, stop: int
) -> None:
    status, headers, body = ask(server, Range=header)
    assert (status, body) == (206, BODY[start:stop])
    assert headers["content-range"] == f"bytes {start}-{stop - 1}/2048"


@pytest.mark.parametrize("header", ["bytes=2048-", "bytes=5000-6000", "bytes=-0"])
def test_a_range_outside_the_object_is_416(server: PlainServer, header: str) -> None:
    status, headers, _ = ask(server, Range=header)
    assert (status, headers["content-range"]) == (416, "bytes */2048")


@pytest.mark.parametrize("header", ["bytes=9-5", "rows=0-1", "bytes=-", "bytes=a-b"])
def test_a_malformed_range_is_ignored(server: PlainServer, header: str) -> None:
    assert ask(server, Range=header)[0] == 200


def test_a_matching_etag_is_served(server: PlainServer) -> None:
    etag = ask(server, "HEAD")[1]["etag"]
    assert ask(server, If_Match=etag)[0] == 200


def test_a_former_etag_is_412(server: PlainServer) -> None:
    etag = ask(server, "HEAD")[1]["etag"]
    server.put("dir/a.bin", b"new")
    assert ask(server, If_Match=etag)[0] == 412


def test_an_unchanged_object_is_304(server: PlainServer) -> None:
    etag = ask(server, "HEAD")[1]["etag"]
    status, _, body = ask(server, If_None_Match=etag)
    assert (status, body) == (304, b"")


def test_a_range_of_a_changed_object_is_the_whole_with_if_range(server: PlainServer) -> None:
    status, _, body = ask(server, Range="bytes=0-3", If_Range='"former"')
    assert (status, body) == (200, BODY)


def test_without_etags_there_is_a_date() -> None:
    with PlainServer({"a": b"x"}, etags=False) as server:
        server.put("a", b"x", modified=1_000_000_000)
        _, headers, _ = ask(server, path="/a")
        assert "etag" not in headers
        assert headers["last-modified"] == "Sun, 09 Sep 2001 01:46:40 GMT"


def test_a_later_object_fails_if_unmodified_since() -> None:
    with PlainServer(etags=False) as server:
        server.put("a", b"x", modified=1_000_000_000)
        former = "Sun, 09 Sep 2001 01:46:39 GMT"
        assert ask(server, path="/a", If_Unmodified_Since=former)[0] == 412


def test_without_ranges_the_whole_is_sent() -> None:
    with PlainServer({"a": BODY}, ranges=False) as server:
        status, headers, body = ask(server, path="/a", Range="bytes=0-3")
        assert (status, body) == (200, BODY)
        assert "accept-ranges" not in headers


def test_files_of_a_directory_are_served(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b c").write_bytes(BODY)
    with PlainServer(root=tmp_path) as server:
        assert ask(server, path="/sub/b%20c", Range="bytes=1-2")[2] == b"\1\2"


def test_files_outside_the_directory_are_not_served(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "root").mkdir()
    with PlainServer(root=tmp_path / "root") as server:
        assert ask(server, path="/../secret")[0] == 404


def test_a_missing_object_is_404(server: PlainServer) -> None:
    assert ask(server, path="/nope")[0] == 404


def test_a_connection_serves_one_request_after_the_other(server: PlainServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    for start in range(0, 2048, 256):
        connection.request("GET", "/dir/a.bin", headers={"Range": f"bytes={start}-{start + 255}"})
        assert len(connection.getresponse().read()) == 256
    connection.close()
    assert {each.connection for each in server.log} == {1}
    assert server.bytes_sent == 2048


def test_obstore_reads_ranges_on_few_connections(server: PlainServer) -> None:
    store = HTTPStore(server.url, client_options={"allow_http": True})
    for start in range(0, 2048, 256):
        assert bytes(obstore.get_range(store, "dir/a.bin", start=start, end=start + 256))
    # On a loaded machine, obstore may open another one before the first is free again.
    assert len({each.connection for each in server.log}) < 4
    assert server.bytes_sent == 2048


def test_a_large_object_of_one_chunk_is_served() -> None:
    chunk = b"0123456789abcdef" * 65536
    with PlainServer() as server:
        server.put("big", Blob([chunk] * 4096), etag='"big"')
        end = 4096 << 20
        body = ask(server, path="/big", Range=f"bytes={end - 20}-{end - 1}")[2]
        assert body == b"cdef0123456789abcdef"
