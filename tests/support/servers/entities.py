"""Ranges, preconditions and redirects of stored content, which are the same on all servers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from email.utils import formatdate, parsedate_to_datetime
from typing import TYPE_CHECKING

from servers.messages import RefusedError, Response

if TYPE_CHECKING:
    from servers.blobs import Blob
    from servers.messages import Request


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
