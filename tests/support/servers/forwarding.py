"""A server that forwards requests to another one, with the log and the faults of these servers."""

from __future__ import annotations

import http.client
from typing import Any

from servers.base import Server
from servers.blobs import Blob
from servers.messages import Request, Response

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
        """Return the answer of the other server."""
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
