"""A plain web server: objects of a dictionary, or files of a directory, with ranges."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from servers.base import Server
from servers.blobs import Blob
from servers.entities import Entity, serve
from servers.messages import RefusedError, Request, Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Buffer


class PlainServer(Server):
    """Serves objects by path, and the files of a directory `root` where no object has the path.

    `ranges=False` ignores Range headers. `etags=False` sends Last-Modified only. With `token`,
    requests need it as a bearer token: without one the status is 401, with another one 403.
    """

    def __init__(
        self,
        objects: Mapping[str, Blob | Buffer] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        ranges: bool = True,
        etags: bool = True,
        token: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.ranges, self.etags, self.token = ranges, etags, token
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

    def delete(self, path: str) -> None:
        """Remove an object. Raises KeyError if there is none."""
        with self.lock:
            del self._objects["/" + path.lstrip("/")]

    def answer(self, request: Request) -> Response:
        """Answer GET and HEAD."""
        if request.method not in {"GET", "HEAD"}:
            raise RefusedError(405, "MethodNotAllowed", "", {"Allow": "GET, HEAD"})
        if self.token is not None:
            self._check_token(request.headers.get("authorization"))
        with self.lock:
            entity = self._objects.get(request.path) or self._file(request.path)
        if entity is None:
            raise RefusedError(404, "NotFound", "there is no object at this path")
        return serve(request, entity, with_ranges=self.ranges)

    def _check_token(self, sent: str | None) -> None:
        if sent is None:
            raise RefusedError(401, "Unauthorized", "", {"WWW-Authenticate": "Bearer"})
        if sent != f"Bearer {self.token}":
            raise RefusedError(403, "Forbidden")

    def _file(self, path: str) -> Entity | None:
        if self._root is None:
            return None
        place = os.path.realpath(os.path.join(self._root, path.lstrip("/")))
        if not place.startswith(self._root + os.sep) or not os.path.isfile(place):
            return None
        status = os.stat(place)
        etag = f'"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"'
        return Entity(Blob.of_file(place), etag if self.etags else None, status.st_mtime)
