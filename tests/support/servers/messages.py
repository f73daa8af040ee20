"""HTTP/1.1 as these servers speak it: requests are read from sockets, answers are records."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from servers.blobs import CHUNK, Blob, spooled

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_HEAD = 1 << 16


@dataclass(slots=True)
class Request:
    """A request. Names of headers are in lower case; `path` is decoded and begins with a slash.

    `sent_headers` are what the client sent and signed, whatever a fault changes in `headers`.
    """

    method: str
    target: str
    path: str
    parameters: list[tuple[str, str]]
    headers: dict[str, str]
    sent_headers: dict[str, str]
    body: Blob = field(default_factory=Blob)

    @classmethod
    def parsed(cls, head: bytes) -> Request:
        """Parse a request line and headers. Raises ValueError if they are malformed."""
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = dict[str, str]()
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise ValueError(f"not a header: {line!r}")
            headers[name.lower()] = value.strip()
        path, _, query = target.partition("?")
        parameters = parse_qsl(query, keep_blank_values=True)
        return cls(method, target, unquote(path), parameters, headers, headers)

    @property
    def query(self) -> dict[str, str]:
        """The parameters by name; of repeated ones the last."""
        return dict(self.parameters)

    @property
    def keeps_alive(self) -> bool:
        """Whether the client sends further requests on the connection."""
        return self.headers.get("connection", "").lower() != "close"


@dataclass(slots=True)
class Response:
    """An answer. `Content-Length` follows from the body unless the headers have it."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: Blob = field(default_factory=Blob)

    def head(self) -> bytes:
        """Return the status line and the headers, with the empty line."""
        try:
            phrase = HTTPStatus(self.status).phrase
        except ValueError:
            phrase = "Unknown"
        headers = dict(self.headers)
        if self.status not in {204, 304}:
            headers.setdefault("Content-Length", str(self.body.size))
        lines = [f"HTTP/1.1 {self.status} {phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def answer_json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return an answer whose body is JSON."""
    headers = {"Content-Type": "application/json; charset=utf-8"} | (headers or {})
    return Response(status, headers, Blob.of(json.dumps(content).encode()))


class RefusedError(Exception):
    """A request that is answered with an error, in the format of the server."""

    def __init__(
        self, status: int, code: str, message: str = "", headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message = status, code, message
        self.headers = headers or {}


class CutError(Exception):
    """The server has read as much of a body as a fault allows."""


class Incoming:
    """What a client sends on a connection.

    `received` counts the bytes of bodies. With a `directory`, bodies of a mebibyte and more are
    written to files there.
    """

    def __init__(self, connection: socket.socket, directory: str | None = None) -> None:
        self.received = 0
        self.limit: int | None = None
        self._connection = connection
        self._directory = directory
        self._buffer = bytearray()

    def head(self) -> bytes | None:
        """Return the head of the next request, or None at the end of the connection."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > LONGEST_HEAD:
                raise ValueError("the head of the request is too long")
            if not (got := self._connection.recv(1 << 16)):
                return None
            self._buffer += got
        head = bytes(self._buffer[:end])
        del self._buffer[: end + 4]
        return head

    def body(self, request: Request) -> Blob:
        """Return the body of a request, without the encodings `chunked` and `aws-chunked`.

        Raises ConnectionError if the client closes the connection, CutError at the limit.
        """
        encoded = "aws-chunked" in request.headers.get("content-encoding", "")
        if request.headers.get("expect", "").lower() == "100-continue":
            self._connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if request.headers.get("transfer-encoding", "").lower() == "chunked":
            body = self._gathered(self._unchunked(request))
        else:
            length = int(request.headers.get("content-length", 0))
            if encoded:
                before = self.received
                body = self._gathered(self._unchunked(request))
                if self.received - before > length:
                    raise ValueError("the body is longer than its Content-Length")
                return body
            return self._sized(length)
        if encoded:
            # Both encodings: the signed chunks are inside those of HTTP.
            return Blob([b"".join(_inner_chunks(bytes(body), request))])
        return body

    def _sized(self, length: int) -> Blob:
        if self._directory and length >= CHUNK:
            return spooled(self._steps(length), self._directory)
        return Blob([self._exactly(length)]) if length else Blob()

    def _gathered(self, pieces: Iterator[memoryview]) -> Blob:
        return spooled(pieces, self._directory) if self._directory else Blob(pieces)

    def _steps(self, length: int) -> Iterator[memoryview]:
        for at in range(0, length, CHUNK):
            yield self._exactly(min(CHUNK, length - at))

    def _unchunked(self, request: Request) -> Iterator[memoryview]:
        while size := int(self._line().split(b";")[0], 16):
            yield self._exactly(size)
            self._line()
        while trailer := self._line():
            name, _, value = trailer.decode("latin-1").partition(":")
            request.headers[name.lower()] = value.strip()

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            self._more()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _more(self) -> None:
        if not (got := self._connection.recv(1 << 16)):
            raise ConnectionError("the client closed the connection within a body")
        self._buffer += got

    def _exactly(self, length: int) -> memoryview:
        whole = memoryview(bytearray(length))
        wanted = length if self.limit is None else min(length, self.limit - self.received)
        at = min(len(self._buffer), wanted)
        whole[:at] = memoryview(self._buffer)[:at]
        del self._buffer[:at]
        self.received += at
        while at < wanted:
            got = self._connection.recv_into(whole[at:wanted], 0, socket.MSG_WAITALL)
            if not got:
                raise ConnectionError("the client closed the connection within a body")
            at += got
            self.received += got
        if wanted < length:
            raise CutError
        return whole


def _inner_chunks(body: bytes, request: Request) -> Iterator[bytes]:
    at = 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end].split(b";")[0], 16)
        at = end + 2
        if not size:
            break
        yield body[at : at + size]
        at += size + 2
    for name, value in re.findall(rb"([\w-]+):([^\r\n]+)", body[at:]):
        request.headers[name.decode().lower()] = value.decode().strip()
