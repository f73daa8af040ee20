"""HTTP servers in threads of the test's process, with a log of requests, counters and faults."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import ipaddress
import json
import os
import random
import re
import socket
import ssl
import struct
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import formatdate, parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import parse_qsl, unquote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Buffer


# The bytes of objects and bodies: chunks of memory and of files, shared and never copied.

# As much as is read of a file at a time, where its bytes are needed in memory.
CHUNK = 1 << 20


class OpenFile:
    """A file without a name: its bytes are freed when nothing refers to it."""

    def __init__(self, directory: str) -> None:
        self.number, path = tempfile.mkstemp(dir=directory)
        os.unlink(path)

    @classmethod
    def of(cls, path: str) -> OpenFile:
        self = cls.__new__(cls)
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self

    def __del__(self) -> None:
        # A file that could not be opened has no number.
        if hasattr(self, "number"):
            os.close(self.number)


class FileChunk(NamedTuple):
    """A byte range of an open file."""

    file: OpenFile
    start: int
    stop: int


Chunk = memoryview | FileChunk


def _length(chunk: Chunk) -> int:
    return chunk.stop - chunk.start if isinstance(chunk, FileChunk) else chunk.nbytes


def _cut(chunk: Chunk, start: int, stop: int) -> Chunk:
    if isinstance(chunk, FileChunk):
        return FileChunk(chunk.file, chunk.start + start, chunk.start + stop)
    return chunk[start:stop]


class Blob:
    """Bytes that do not change, as a list of chunks.

    A large object for a benchmark costs little memory as one chunk, repeated: `Blob([chunk] * n)`.
    """

    def __init__(self, chunks: Iterable[Buffer | FileChunk] = ()) -> None:
        self.chunks: tuple[Chunk, ...] = tuple(
            chunk if isinstance(chunk, FileChunk) else memoryview(chunk).cast("B")
            for chunk in chunks
        )
        self.size = sum(map(_length, self.chunks))

    @classmethod
    def of(cls, content: Blob | Buffer) -> Blob:
        return content if isinstance(content, Blob) else cls([content])

    @classmethod
    def of_file(cls, path: str) -> Blob:
        file = OpenFile.of(path)
        return cls([FileChunk(file, 0, os.fstat(file.number).st_size)])

    @classmethod
    def joined(cls, blobs: Iterable[Blob]) -> Blob:
        """Return the bytes of all blobs, in order."""
        return cls(chunk for blob in blobs for chunk in blob.chunks)

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return b"".join(self.views())

    def cut(self, start: int, stop: int) -> Blob:
        found = list[Chunk]()
        at = 0
        for chunk in self.chunks:
            end = at + _length(chunk)
            if end > start and at < stop:
                found.append(_cut(chunk, max(start - at, 0), min(stop, end) - at))
            at = end
        return Blob(found)

    def views(self) -> Iterator[memoryview]:
        """Yield the bytes in order; those of files are read in steps."""
        for chunk in self.chunks:
            if isinstance(chunk, FileChunk):
                for at in range(chunk.start, chunk.stop, CHUNK):
                    size = min(CHUNK, chunk.stop - at)
                    yield memoryview(os.pread(chunk.file.number, size, at))
            else:
                yield chunk

    def hash(self, algorithm: str) -> bytes:
        """Return the digest of the bytes: "md5", "sha256" or another name of hashlib."""
        digest = hashlib.new(algorithm, usedforsecurity=False)
        for view in self.views():
            digest.update(view)
        return digest.digest()

    def send(self, connection: socket.socket) -> None:
        """Send the bytes; the operating system reads those of files.

        Raises UnsentError if the connection is lost, or if a file is shorter than it was.
        """
        sent = 0
        try:
            for chunk in self.chunks:
                at = 0
                while at < _length(chunk):
                    rest = _cut(chunk, at, _length(chunk))
                    if isinstance(rest, FileChunk):
                        size = rest.stop - rest.start
                        step = os.sendfile(connection.fileno(), rest.file.number, rest.start, size)
                    else:
                        step = connection.send(rest)
                    if step == 0:
                        raise UnsentError(sent)
                    at += step
                    sent += step
        except OSError as error:
            raise UnsentError(sent) from error


class UnsentError(OSError):
    """The rest of a blob could not be sent. `sent` is the number of bytes before it."""

    def __init__(self, sent: int) -> None:
        super().__init__(f"the connection was lost after {sent} bytes")
        self.sent = sent


def spooled(pieces: Iterable[memoryview], directory: str) -> Blob:
    """Write bytes to a nameless file in the directory, and return them."""
    file = OpenFile(directory)
    size = 0
    for piece in pieces:
        rest = piece
        while rest.nbytes:
            written = os.pwrite(file.number, rest, size)
            rest = rest[written:]
            size += written
    return Blob([FileChunk(file, 0, size)])


# HTTP/1.1 as these servers speak it: requests are read from sockets, answers are records.

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


# Faults on demand: which requests, and what goes wrong with them.


class Break(NamedTuple):
    """How an answer is interrupted: after so many bytes of its body, None is before its head.

    After the pause the rest follows, unless the connection `ends`: "reset" (RST) or "close" (FIN).
    """

    after: int | None
    pause: float = 0
    ends: str = ""


class Action:
    """What goes wrong with a request. The methods of this class change nothing."""

    upload_limit: int | None = None
    interruption: Break | None = None

    def before(self, request: Request) -> Request:
        """Return the request as the server is to see it. Raises RefusedError to answer at once."""
        return request

    def after(self, response: Response) -> Response:
        return response


@dataclass(frozen=True)
class Answer(Action):
    """The request is not done, and is answered with an error status.

    With status 200, the body is an error: S3 does so where a long request fails late. An expired
    token is `Answer(400, "ExpiredToken")` on S3, and status 401 or 403 elsewhere. The answer comes
    after `pause` seconds.
    """

    status: int
    code: str = ""
    retry_after: float | None = None
    pause: float = 0

    def before(self, request: Request) -> Request:
        time.sleep(self.pause)
        after = self.retry_after
        headers = {} if after is None else {"Retry-After": f"{after:g}"}
        names = {503: "SlowDown", 500: "InternalError", 429: "TooManyRequests"}
        code = self.code or names.get(self.status, "AccessDenied")
        raise RefusedError(self.status, code, f"{request.method} fails on purpose", headers)


@dataclass(frozen=True)
class Redirect(Action):
    """The request is sent to the same target at another base URL."""

    base: str
    status: int = 302

    def before(self, request: Request) -> Request:
        headers = {"Location": self.base.rstrip("/") + request.target}
        raise RefusedError(self.status, "TemporaryRedirect", "", headers)


@dataclass(frozen=True)
class Reset(Action):
    """The connection is reset after so many bytes of the body of the answer."""

    bytes_sent: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "interruption", Break(self.bytes_sent, ends="reset"))


@dataclass(frozen=True)
class Close(Action):
    """The connection is closed after so many bytes: the body is shorter than Content-Length."""

    bytes_sent: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "interruption", Break(self.bytes_sent, ends="close"))


@dataclass(frozen=True)
class LoseAnswer(Action):
    """The request takes effect, but the connection is reset before the answer."""

    interruption: Break | None = field(default=Break(None, ends="reset"), init=False)


@dataclass(frozen=True)
class Stall(Action):
    """No byte comes for some seconds, after so many bytes of the body; then the rest follows."""

    seconds: float
    bytes_sent: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "interruption", Break(self.bytes_sent, self.seconds))


@dataclass(frozen=True)
class CutUpload(Action):
    """The connection is reset when the server has so many bytes of the body of the request."""

    upload_limit: int | None = 0


@dataclass(frozen=True)
class Truncate(Action):
    """The body has only its first bytes, and Content-Length agrees with it."""

    size: int

    def after(self, response: Response) -> Response:
        headers = {k: v for k, v in response.headers.items() if k.lower() != "content-length"}
        return replace(response, headers=headers, body=response.body.cut(0, self.size))


@dataclass(frozen=True)
class Zeros(Action):
    """The body has zeros in place of its bytes; size and ETag are those of the bytes."""

    def after(self, response: Response) -> Response:
        return replace(response, body=Blob.of(bytes(response.body.size)))


@dataclass(frozen=True)
class OtherETag(Action):
    """The answer has another ETag, and a precondition on the former one fails."""

    etag: str = '"replaced"'

    def before(self, request: Request) -> Request:
        expected = request.headers.get("if-match")
        if expected not in {None, "*", self.etag}:
            raise RefusedError(412, "PreconditionFailed", "the object has another ETag")
        headers = {k: v for k, v in request.headers.items() if k != "if-match"}
        return replace(request, headers=headers)

    def after(self, response: Response) -> Response:
        if response.status >= 300:
            return response
        headers = {k: v for k, v in response.headers.items() if k.lower() != "etag"}
        return replace(response, headers=headers | {"ETag": self.etag})


@dataclass(frozen=True)
class IgnoreRange(Action):
    """The request is answered as if it had no Range: status 200 and the whole object."""

    def before(self, request: Request) -> Request:
        headers = {k: v for k, v in request.headers.items() if k != "range"}
        return replace(request, headers=headers)


@dataclass(frozen=True)
class Call(Action):
    """A function runs before the request is done: to replace the object between two requests."""

    function: Callable[[], object]

    def before(self, request: Request) -> Request:
        self.function()
        return request


@dataclass
class Fault:
    """An action, and the requests it happens to. `seen` and `done` count them.

    `path` is a regular expression that is searched in the target (path and query); `nth` says
    which of the matching requests, counted from 0; `times` is how often at most.
    """

    action: Action
    method: str | None = None
    path: str = ""
    nth: int | Collection[int] | None = None
    probability: float = 1
    seed: int = 0
    times: int | None = None
    when: Callable[[Request], bool] | None = None
    seen: int = 0
    done: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._lock = threading.Lock()
        self._pattern = re.compile(self.path)

    def strikes(self, request: Request) -> bool:
        """Count a request if it matches; return whether the action happens to it."""
        if self.method not in {None, request.method} or not self._pattern.search(request.target):
            return False
        if self.when and not self.when(request):
            return False
        with self._lock:
            number, drawn = self.seen, self._random.random()
            self.seen += 1
            numbers = {self.nth} if isinstance(self.nth, int) else self.nth
            wanted = numbers is None or number in numbers
            left = self.times is None or self.done < self.times
            strikes = wanted and left and drawn < self.probability
            self.done += strikes
            return strikes


# A server in threads of the test's process: a log of requests, counters, and faults.

# A head and a body up to this size are sent in one packet.
SMALL = 1 << 16


@dataclass(slots=True)
class Exchange:
    """A request and its answer in the log. `received` and `sent` are bytes of bodies.

    `sent` has its value before the first byte is sent: a client that has the whole answer finds
    it in the log. If the client leaves earlier, it becomes the number of bytes up to then.
    """

    method: str
    path: str
    target: str
    query: dict[str, str]
    headers: dict[str, str]
    connection: int
    action: Action | None = None
    status: int = 0
    received: int = 0
    sent: int = 0
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


class Server:
    """Listens on 127.0.0.1, with a thread for each connection. Subclasses define `answer`.

    `latency` is how many seconds each request waits. `directory` is where bodies of a mebibyte
    and more are stored; without it, they are in memory.
    """

    def __init__(self, *, latency: float = 0, directory: str | None = None) -> None:
        self.latency = latency
        self.directory = directory
        self.log = list[Exchange]()
        self.faults = list[Fault]()
        self.failures = list[Exception]()
        self.lock = threading.RLock()
        self._stopping = threading.Event()
        self._threads = set[threading.Thread]()
        self._connections = set[socket.socket]()
        self._accepted = 0
        self._acceptor: threading.Thread | None = None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]

    def answer(self, request: Request) -> Response:
        """Return the answer to a request. Raises RefusedError for an error."""
        raise NotImplementedError

    def refuse(self, request: Request, refusal: RefusedError) -> Response:
        """Return an error in the format of the server."""
        text = f"{refusal.code}: {refusal.message} ({request.method} {request.path})\n"
        headers = {"Content-Type": "text/plain"} | refusal.headers
        return Response(refusal.status, headers, Blob.of(text.encode()))

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def other_url(self) -> str:
        """The same server under another host name."""
        return f"http://localhost:{self.port}"

    @property
    def requests(self) -> int:
        return len(self.log)

    @property
    def bytes_sent(self) -> int:
        return sum(each.sent for each in list(self.log))

    @property
    def bytes_received(self) -> int:
        return sum(each.received for each in list(self.log))

    def exchanges(self, method: str | None = None, path: str = "") -> list[Exchange]:
        """Return the requests with a method whose target contains `path`."""
        return [
            each for each in list(self.log) if method in {None, each.method} and path in each.target
        ]

    def forget(self) -> None:
        """Empty the log, and with it the counters."""
        self.log = []

    def inject(self, action: Action, method: str | None = None, **rule: Any) -> Fault:
        """Make a fault, as the fields of `Fault` say, and return it."""
        fault = Fault(action, method, **rule)
        self.faults.append(fault)
        return fault

    def start(self) -> Self:
        """Accept connections, in a thread."""
        self._acceptor = self._run(self._accept)
        return self

    def stop(self) -> None:
        """Close all connections and wait for the threads.

        Raises the first exception of a handler: it is a defect of the server.
        """
        self._stopping.set()
        # A blocking accept() does not return when another thread closes its socket.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        # After this thread has ended, no other thread is added, and each of them has started.
        if self._acceptor is not None:
            self._acceptor.join(10)
        with self.lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            threads = list(self._threads)
        for thread in threads:
            thread.join(10)
        if self.failures:
            raise self.failures[0]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except Exception:
            # The test's own exception says more than what followed from it.
            if error is None:
                raise

    def _run(self, target: Any, *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                target(*arguments)
            finally:
                with self.lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, daemon=True, name=type(self).__name__)
        with self.lock:
            self._threads.add(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self.lock:
                self._accepted += 1
                self._connections.add(connection)
                number = self._accepted
            if self._stopping.is_set():
                self._drop(connection)
                return
            self._run(self._serve, connection, number)

    def _drop(self, connection: socket.socket) -> None:
        with self.lock:
            self._connections.discard(connection)
        connection.close()

    def _serve(self, connection: socket.socket, number: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        incoming = Incoming(connection, self.directory)
        try:
            while not self._stopping.is_set() and self._exchange(connection, incoming, number):
                pass
        except CutError:
            _reset_on_close(connection)
        except OSError:
            pass  # The client is gone.
        finally:
            self._drop(connection)

    def _exchange(self, connection: socket.socket, incoming: Incoming, number: int) -> bool:
        """Answer one request; return whether a further one may follow on the connection."""
        try:
            if (head := incoming.head()) is None:
                return False
            request = Request.parsed(head)
        except ValueError as error:
            refused = Response(400, {"Connection": "close"}, Blob.of(f"{error}\n".encode()))
            _send(connection, refused.head(), refused.body)
            return False
        exchange = Exchange(
            request.method, request.path, request.target, request.query, request.headers, number
        )
        self.log.append(exchange)
        exchange.action = action = next(
            (each.action for each in list(self.faults) if each.strikes(request)), Action()
        )
        before, incoming.limit = incoming.received, None
        if action.upload_limit is not None:
            incoming.limit = before + action.upload_limit
        try:
            request.body = incoming.body(request)
        finally:
            exchange.received = incoming.received - before
        if self.latency:
            self._stopping.wait(self.latency)
        response = self._answer(request, action)
        if not request.keeps_alive:
            response.headers["Connection"] = "close"
        body = Blob() if request.method == "HEAD" else response.body
        exchange.status, exchange.sent = response.status, body.size
        ends = True
        try:
            ends = self._deliver(connection, exchange, response.head(), body)
        except UnsentError as unsent:
            exchange.sent = unsent.sent
            raise
        finally:
            exchange.seconds = time.monotonic() - exchange.started
        return not ends and request.keeps_alive

    def _answer(self, request: Request, action: Action) -> Response:
        try:
            return action.after(self.answer(action.before(request)))
        except RefusedError as refusal:
            return self.refuse(request, refusal)
        except Exception as error:  # noqa: BLE001 - `stop` raises it in the thread of the test
            self.failures.append(error)
            return self.refuse(request, RefusedError(500, "InternalError", repr(error)))

    def _deliver(
        self, connection: socket.socket, exchange: Exchange, head: bytes, body: Blob
    ) -> bool:
        """Send an answer; return whether a fault ends the connection."""
        where = exchange.action.interruption if exchange.action else None
        if where is None:
            _send(connection, head, body)
            return False
        first = body.cut(0, where.after or 0)
        if where.ends:
            exchange.sent = first.size
        if where.after is not None:
            _send(connection, head, first)
        self._stopping.wait(where.pause)
        if where.ends == "reset":
            _reset_on_close(connection)
        if not where.ends:
            body.cut(first.size, body.size).send(connection)
        return bool(where.ends)


def _send(connection: socket.socket, head: bytes, body: Blob) -> None:
    is_small = body.size <= SMALL
    try:
        if is_small:
            connection.sendall(head + bytes(body))
        else:
            connection.sendall(head, socket.MSG_MORE)
    except OSError as error:
        raise UnsentError(0) from error
    if not is_small:
        body.send(connection)


def _reset_on_close(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# Ranges, preconditions and redirects of stored content, which are the same on all servers.


@dataclass(slots=True)
class Entity:
    """Content with its validators. `etag` has its quotes, and is None where there is none."""

    body: Blob
    etag: str | None
    modified: float
    content_type: str = "application/octet-stream"
    headers: dict[str, str] = field(default_factory=dict[str, str])


def serve(request: Request, entity: Entity, *, with_ranges: bool = True) -> Response:
    """Return the answer to GET or HEAD: 200, 206, or 304.

    Raises RefusedError with status 412 if a precondition fails, 416 if the range is outside.
    """
    headers = {"Content-Type": entity.content_type, "Last-Modified": date(entity.modified)}
    headers |= {} if entity.etag is None else {"ETag": entity.etag}
    headers |= entity.headers
    check_preconditions(request, entity)
    if _is_unchanged(request, entity):
        return Response(304, headers)
    if not with_ranges:
        return Response(200, headers, entity.body)
    headers["Accept-Ranges"] = "bytes"
    bounds = _bounds(request, entity)
    if bounds is None:
        return Response(200, headers, entity.body)
    start, stop = bounds
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{entity.body.size}"
    return Response(206, headers, entity.body.cut(start, stop))


def check_preconditions(request: Request, entity: Entity | None) -> None:
    """Raise RefusedError with status 412 if If-Match or If-Unmodified-Since fails."""
    expected = request.headers.get("if-match")
    since = request.headers.get("if-unmodified-since")
    if expected is not None:
        fails = entity is None or not _agrees(expected, entity.etag)
    elif since is not None:
        latest = parsedate_to_datetime(since).timestamp()
        fails = entity is None or int(entity.modified) > latest
    else:
        fails = False
    if fails:
        raise RefusedError(412, "PreconditionFailed", "If-Match or If-Unmodified-Since")


def date(seconds: float) -> str:
    """Return a time as HTTP writes it."""
    return formatdate(seconds, usegmt=True)


def range_of(header: str, size: int) -> tuple[int, int] | None:
    """Return start and stop of a Range header, or None if it is malformed and thus ignored.

    Raises RefusedError with status 416 if the range is outside.
    """
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header)
    if not match or not (match[1] or match[2]):
        return None
    if not match[1]:
        start, stop = max(size - int(match[2]), 0), size
    else:
        start = int(match[1])
        stop = min(int(match[2]) + 1, size) if match[2] else size
        if match[2] and int(match[2]) < start:
            return None
    if start >= stop:
        raise RefusedError(416, "InvalidRange", header, {"Content-Range": f"bytes */{size}"})
    return start, stop


def _bounds(request: Request, entity: Entity) -> tuple[int, int] | None:
    header = request.headers.get("range")
    if header is None:
        return None
    condition = request.headers.get("if-range")
    if condition is not None and condition not in {entity.etag, date(entity.modified)}:
        return None
    return range_of(header, entity.body.size)


def _is_unchanged(request: Request, entity: Entity) -> bool:
    if (known := request.headers.get("if-none-match")) is not None:
        return _agrees(known, entity.etag)
    since = request.headers.get("if-modified-since")
    return since is not None and int(entity.modified) <= parsedate_to_datetime(since).timestamp()


def _agrees(header: str, etag: str | None) -> bool:
    listed = [each.strip().removeprefix("W/") for each in header.split(",")]
    # Clients also send ETags without quotes, and stores accept them.
    return header.strip() == "*" or etag in listed or f'"{header.strip()}"' == etag


# A server that forwards requests to another one, with the log and the faults of these servers.

# Headers of a connection, which is another one behind this server.
_OF_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "expect", "content-length"}


class ForwardingServer(Server):
    """Forwards requests to a port of this machine. Their signatures stay valid: so does the host.

    Bodies are decoded on the way; clients must not send them in signed chunks.
    """

    def __init__(self, port: int, **options: Any) -> None:
        super().__init__(**options)
        self.upstream = port

    def answer(self, request: Request) -> Response:
        headers = {k: v for k, v in request.headers.items() if k not in _OF_CONNECTION}
        upstream = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        try:
            upstream.putrequest(
                request.method, request.target, skip_host=True, skip_accept_encoding=True
            )
            for name, value in headers.items():
                upstream.putheader(name, value)
            if request.body.size or request.method in {"PUT", "POST"}:
                upstream.putheader("content-length", str(request.body.size))
            upstream.endheaders(bytes(request.body))
            found = upstream.getresponse()
            body = found.read()
            kept = {k: v for k, v in found.getheaders() if k.lower() not in _OF_CONNECTION}
            if request.method == "HEAD" and (length := found.getheader("content-length")):
                kept["Content-Length"] = length
            return Response(found.status, kept, Blob.of(body))
        finally:
            upstream.close()


# A plain web server: objects of a dictionary, or files of a directory, with ranges.


class PlainServer(Server):
    """Serves objects by path, and the files of a directory `root` where no object has the path.

    `ranges=False` ignores Range headers. `etags=False` sends Last-Modified only.
    """

    def __init__(
        self,
        objects: Mapping[str, Blob | Buffer] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        ranges: bool = True,
        etags: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.ranges, self.etags = ranges, etags
        self._root = None if root is None else os.path.realpath(root)
        self._objects = dict[str, Entity]()
        for path, content in (objects or {}).items():
            self.put(path, content)

    def put(
        self,
        path: str,
        content: Blob | Buffer,
        *,
        modified: float | None = None,
        etag: str | None = None,
    ) -> str:
        """Store or replace an object; return its URL. Without an `etag`, its bytes are hashed."""
        path = "/" + path.lstrip("/")
        blob = Blob.of(content)
        if self.etags:
            etag = etag or f'"{blob.hash("sha256").hex()[:32]}"'
        entity = Entity(
            blob, etag if self.etags else None, time.time() if modified is None else modified
        )
        with self.lock:
            self._objects[path] = entity
        return self.url + path

    def answer(self, request: Request) -> Response:
        if request.method not in {"GET", "HEAD"}:
            raise RefusedError(405, "MethodNotAllowed", "", {"Allow": "GET, HEAD"})
        with self.lock:
            entity = self._objects.get(request.path) or self._file(request.path)
        if entity is None:
            raise RefusedError(404, "NotFound", "there is no object at this path")
        return serve(request, entity, with_ranges=self.ranges)

    def _file(self, path: str) -> Entity | None:
        if self._root is None:
            return None
        place = os.path.realpath(os.path.join(self._root, path.lstrip("/")))
        if not place.startswith(self._root + os.sep) or not os.path.isfile(place):
            return None
        status = os.stat(place)
        etag = f'"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"'
        return Entity(Blob.of_file(place), etag if self.etags else None, status.st_mtime)


# TLS in front of a server: some clients send tokens over encrypted connections only.


def write_certificate(directory: Path) -> Path:
    """Write a certificate for this machine, and its key behind it; return the file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = directory / "localhost.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + pem)
    return path


@contextlib.contextmanager
def serve_tls(port: int, certificate: Path) -> Generator[int, None, None]:
    """Accept TLS connections, and pass what they contain to a port of this machine."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_accept, args=(listener, context, port), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def _accept(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_pass_on, args=(plain, context, port), daemon=True).start()


def _pass_on(plain: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with (
        contextlib.suppress(OSError),
        plain,
        context.wrap_socket(plain, server_side=True) as outer,
        socket.create_connection(("127.0.0.1", port)) as inner,
    ):
        back = threading.Thread(target=_copy, args=(inner, outer), daemon=True)
        back.start()
        _copy(outer, inner)
        back.join(10)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
