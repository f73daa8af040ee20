"""Answers that no retry mends end at once, and every error is in words of weightctl."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager
from functools import partial as partial_function
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from each import each
from weightctl import open_weights
from weightctl.errors import FormatError
from weightctl.storage.remote import requests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def answer(status: str, *headers: str, body: str = "") -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def partial(*headers: str) -> bytes:
    return answer("206 Partial Content", *headers, body="abcd")


OTHER = "the server sends another range than was requested"
AWAY = "the server redirects to an address that cannot be read"
LONG = "the headers of the answer are too large"
NO_BUCKET = "<Error><Code>NoSuchBucket</Code><Message>none</Message></Error>"
# What a server sends, and what is said of it. A name is sent again without end.
FINAL: dict[str, tuple[bytes, str]] = {
    "another range": (partial("Content-Range: bytes 100-103/200"), OTHER),
    "a part without a range": (partial(), OTHER),
    "a range that is not one": (partial("Content-Range: pages 1-2/z"), OTHER),
    "no length": (
        (b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-3/4\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n"),
        "the server does not state the length of the file",
    ),
    "the whole file": (answer("200 OK", body="abcd"), "the server does not support range requests"),
    "a redirect to a file": (answer("302 Found", "Location: file:///etc/passwd"), AWAY),
    "a redirect to ftp": (answer("302 Found", "Location: ftp://localhost/a"), AWAY),
    "a redirect to nowhere": (answer("301 Moved Permanently"), AWAY),
    "redirects without end": (
        answer("302 Found", "Location: /again"), "the redirects of the server do not end",
    ),
    "a large header": (answer("200 OK", *(f"X-{n}: {'a' * 1000}" for n in range(2000))), LONG),
    "many headers": (answer("200 OK", *(f"X-{n}: a" for n in range(2000))), LONG),
    "another protocol": (b"SSH-2.0-OpenSSH_9.2\r\n", "the answer is not HTTP"),
    "a status of the law": (
        answer("451 Unavailable"), "the server refuses the request with status 451",
    ),
    "no bucket": (answer("404 Not Found", body=NO_BUCKET), "the bucket does not exist"),
}  # fmt: skip
REPEATED: dict[str, tuple[bytes, str]] = {
    "a failure": (answer("500 Oops"), "the server answers with status 500"),
    "a closed connection": (b"", "the server closed the connection"),
}


@contextmanager
def serving(sent: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the port of a server that answers every request alike, and the requests."""
    asked: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        with connection:
            while request := connection.recv(1 << 16):
                asked.append(request)
                connection.sendall(sent)
                if not sent.startswith(b"HTTP/1.1 "):
                    return

    def listen() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=listen, daemon=True).start()
        yield listener.getsockname()[1], asked
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture(autouse=True)
def _without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(requests, "_LONGEST_WAIT", 0.001)


@each("case", FINAL)
def test_an_answer_that_no_retry_mends_ends_at_once(case: str) -> None:
    sent, reason = FINAL[case]
    with serving(sent) as (port, asked), pytest.raises(FormatError) as raised:
        open_weights(f"http://127.0.0.1:{port}/model.gguf")
    assert reason in raised.value.message
    # A GET, and perhaps a HEAD; a redirect is followed ten times.
    assert len(asked) <= (22 if "Location: /" in sent.decode() else 2), len(asked)


@each("case", REPEATED)
def test_other_failures_are_repeated(case: str) -> None:
    sent, reason = REPEATED[case]
    with serving(sent) as (port, asked), pytest.raises(FormatError) as raised:
        open_weights(f"http://127.0.0.1:{port}/model.gguf")
    assert reason in raised.value.message
    assert len(asked) >= requests._ATTEMPTS


def test_a_server_that_is_silent_is_named_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "WEIGHTCTL_TIMEOUT", "0.2")
    monkeypatch.setattr(requests, "_ATTEMPTS", 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/model.gguf"
        with pytest.raises(FormatError, match=r"timed out after 0\.2 s"):
            open_weights(url)


def test_a_host_that_does_not_exist_is_an_error_at_once() -> None:
    with pytest.raises(
        FormatError, match=r"(the host does not exist|the name of the host cannot be looked up)"
    ):
        open_weights("http://no-such-host.invalid/model.gguf")


def test_a_port_that_nothing_listens_on_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(FormatError, match="the server refuses connections"):
        open_weights(f"http://127.0.0.1:{port}/model.gguf")


def test_a_missing_file_is_named_and_not_its_directory(tmp_path: Path) -> None:
    handler = partial_function(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/absent.gguf"
        with pytest.raises(FormatError, match=r"/absent\.gguf: No such file or directory"):
            open_weights(url)
        server.shutdown()
