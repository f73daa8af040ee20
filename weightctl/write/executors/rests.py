"""Bytes of parts of uploads that workers could not complete, in objects beside the output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import OutputError
from weightctl.storage.location import store_of
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.storage.base import Uploads
    from weightctl.storage.byte_range import ByteRange

__all__ = ["Rest", "RestRange", "format_rest", "parse_rest", "uploads_of"]


class RestRange(NamedTuple):
    """Bytes of an output file from `offset` on; the object of a `Rest` has them from `start` on."""

    file: int
    offset: int
    start: int
    nbytes: int


class Rest(NamedTuple):
    """An object with what a batch has left of parts that it could not complete."""

    path: str
    ranges: tuple[RestRange, ...]

    def list_held(self) -> Iterator[tuple[int, int, ByteRange]]:
        """Yield the file, the offset there, and the bytes of each range."""
        for file, offset, start, nbytes in self.ranges:
            yield file, offset, _RestBytes(self.path, start, nbytes)


def format_rest(rest: Rest) -> dict[str, Any]:
    """Return the entry of a journal for the bytes that a worker has left."""
    return {"rest": rest.path, "ranges": [list(each) for each in rest.ranges]}


def parse_rest(entry: Mapping[str, Any]) -> Rest | None:
    """Return what an entry of a journal says that a worker has left; None for another entry."""
    path, ranges = entry.get("rest"), entry.get("ranges")
    if not isinstance(path, str) or not is_list(ranges):
        return None
    found: list[RestRange] = []
    for each in ranges:
        if not is_list(each) or len(each) != 4 or any(type(field) is not int for field in each):
            return None
        found.append(RestRange(*each))
    return Rest(path, tuple(found))


class _RestBytes:
    """Bytes of an object, requested when they are read."""

    def __init__(self, path: str, start: int, nbytes: int) -> None:
        self._path = path
        self._start = start
        self._nbytes = nbytes

    def __len__(self) -> int:
        return self._nbytes

    def read(self, start: int, nbytes: int) -> bytes:
        """Read bytes."""
        nbytes = min(nbytes, self._nbytes - start)
        return uploads_of(self._path).read(self._path, self._start + start, nbytes)

    def part(self, start: int, stop: int) -> _RestBytes:
        """Return a part of the bytes."""
        return _RestBytes(self._path, self._start + start, stop - start)


def uploads_of(path: str) -> Uploads:
    """Return what writes the objects of a URL's store."""
    store = store_of(path)
    if store is None:
        raise OutputError(f"{path} is not a URL", hint="use the URL of an object store")
    return store.uploads(path)
