"""A server in threads of the test's process: a log of requests, counters, and faults."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from servers.blobs import Blob, UnsentError
from servers.faults import Action, Fault
from servers.messages import CutError, Incoming, RefusedError, Request, Response

if TYPE_CHECKING:
    from types import TracebackType

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
        """The Range header of the request."""
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
        """The number of requests in the log."""
        return len(self.log)

    @property
    def bytes_sent(self) -> int:
        """The bytes of all bodies of answers."""
        return sum(each.sent for each in list(self.log))

    @property
    def bytes_received(self) -> int:
        """The bytes of all bodies of requests."""
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
