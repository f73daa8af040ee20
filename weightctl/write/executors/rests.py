"""Objects next to the output with bytes of upload parts that workers could not complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import OutputError
from weightctl.storage.location import store_of
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.storage.base import ByteRange, Uploads


class RestRange(NamedTuple):
    """A range of an output file, at `offset`; its bytes start at `start` in a `Rest`'s object."""

    file: int
    offset: int
    start: int
    nbytes: int


class Rest(NamedTuple):
    """An object with the bytes of the parts that a batch could not complete."""

    path: str
    ranges: tuple[RestRange, ...]

    def list_held(self) -> Iterator[tuple[int, int, ByteRange]]:
        """Yield the file number, the offset in the file, and the bytes of each range."""
        for file, offset, start, nbytes in self.ranges:
            yield file, offset, _RestBytes(self.path, start, nbytes)


def format_rest(rest: Rest) -> dict[str, Any]:
    """Return the journal entry of a rest."""
    return {"rest": rest.path, "ranges": [list(each) for each in rest.ranges]}


def parse_rest(entry: Mapping[str, Any]) -> Rest | None:
    """Return the rest in a journal entry; None if it is another entry."""
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
    """A range of an object's bytes, which is requested on demand."""

    def __init__(self, path: str, start: int, nbytes: int) -> None:
        self._path = path
        self._start = start
        self._nbytes = nbytes

    def __len__(self) -> int:
        return self._nbytes

    def read(self, start: int, nbytes: int) -> bytes:
        """Request bytes of the range."""
        nbytes = min(nbytes, self._nbytes - start)
        return uploads_of(self._path).read(self._path, self._start + start, nbytes)

    def part(self, start: int, stop: int) -> _RestBytes:
        """Return a part of the range."""
        return _RestBytes(self._path, self._start + start, stop - start)


def uploads_of(path: str) -> Uploads:
    """Return the interface that writes objects of a URL's store."""
    store = store_of(path)
    if store is None:
        raise OutputError(f"{path} is not a URL", hint="use the URL of an object store")
    return store.uploads(path)
