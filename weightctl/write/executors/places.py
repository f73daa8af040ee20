"""Where workers write: temporary files that all of them can open, or uploads of an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from weightctl.errors import OutputError
from weightctl.storage.local import FileWriter
from weightctl.storage.location import store_of
from weightctl.storage.remote.part_limit import PartLimit
from weightctl.storage.remote.upload import UploadWriter
from weightctl.text.untyped import is_list
from weightctl.write.objects.object_parts import cut_object, list_copies, list_gaps

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from weightctl.formats.base import Layout
    from weightctl.plan.plan import Plan
    from weightctl.sharding.plan import ShardPlan
    from weightctl.storage.base import UploadedPart, Uploads, Writer
    from weightctl.storage.byte_range import ByteRange

__all__ = [
    "Delivered",
    "ObjectUploads",
    "OpenPlace",
    "Place",
    "Rest",
    "RestRange",
    "TemporaryFiles",
    "format_rest",
    "parse_rest",
    "uploads_of",
]


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


class Delivered(NamedTuple):
    """What a batch has sent to a store: parts by file and number, and the rest."""

    parts: Mapping[int, Mapping[int, UploadedPart]] = {}
    rest: Rest | None = None


class OpenPlace(Protocol):
    """The output files of a run, opened by a worker."""

    @property
    def files(self) -> Sequence[Writer]:
        """The writers of all files."""
        ...

    def deliver(self, name: str, files: Collection[int], /, *, is_local: bool) -> Delivered:
        """Make durable what a batch has written to `files`; `name` is that of the batch.

        Nothing is waited for where the run is on this machine, and does so itself.
        """
        ...

    def drop(self) -> None:
        """Forget what a batch that failed has written."""
        ...

    def close(self) -> None:
        """Close the files."""
        ...


class Place(Protocol):
    """Where the workers of a run write; it is sent to them."""

    def open(
        self, plan: Plan | ShardPlan, layouts: Sequence[Layout], /, *, memory: int
    ) -> OpenPlace:
        """Open all files, with at most `memory` bytes for what is to be sent."""
        ...


class TemporaryFiles(NamedTuple):
    """The paths of temporary files, which exist."""

    paths: tuple[str, ...]

    def open(
        self, plan: Plan | ShardPlan, layouts: Sequence[Layout], /, *, memory: int
    ) -> _OpenFiles:
        """Open the files; raises `OutputError` if one of them does not exist."""
        del plan, memory
        pairs = zip(self.paths, layouts, strict=True)
        return _OpenFiles([FileWriter(path, each.nbytes, create=False) for path, each in pairs])


class _OpenFiles(NamedTuple):
    """Temporary files, opened by a worker."""

    files: Sequence[FileWriter]

    def deliver(self, name: str, files: Collection[int], /, *, is_local: bool) -> Delivered:
        del name
        for file in () if is_local else sorted(files):
            self.files[file].sync()
        return Delivered()

    def drop(self) -> None:
        """Do nothing: another worker writes the same bytes over these."""

    def close(self) -> None:
        for file in self.files:
            file.close()


class ObjectUploads(NamedTuple):
    """Uploads in parts, by file: the URLs, the ids, and the size and the least size of parts.

    `rest` begins the URLs of what batches leave.
    """

    paths: tuple[str, ...]
    ids: tuple[str, ...]
    sizes: tuple[int, ...]
    least: tuple[int, ...]
    rest: str

    def open(
        self, plan: Plan | ShardPlan, layouts: Sequence[Layout], /, *, memory: int
    ) -> _OpenUploads:
        """Return writers of the uploads; nothing is sent yet."""
        uploads = uploads_of(self.rest)
        limit = PartLimit(memory // 4)
        copies = list_copies(plan, layouts, uploads)
        files = [
            UploadWriter(
                self.paths[number],
                layout.nbytes,
                uploads=uploads,
                limit=limit,
                upload=self.ids[number],
                parts=cut_object(
                    layout.nbytes,
                    copies[number],
                    size=self.sizes[number],
                    least=self.least[number],
                ),
                gaps=list_gaps(layout),
            )
            for number, layout in enumerate(layouts)
        ]
        return _OpenUploads(files, limit, uploads, self.rest)


class _OpenUploads(NamedTuple):
    """Uploads, opened by a worker."""

    files: Sequence[UploadWriter]
    limit: PartLimit
    uploads: Uploads
    rest: str

    def deliver(self, name: str, files: Collection[int], /, *, is_local: bool) -> Delivered:
        del is_local
        parts = {number: self.files[number].take_sent() for number in sorted(files)}
        ranges: list[RestRange] = []
        content = bytearray()
        for number in sorted(files):
            for offset, data in self.files[number].take_rest():
                ranges.append(RestRange(number, offset, len(content), len(data)))
                content += data
        if not ranges:
            return Delivered(parts)
        path = f"{self.rest}{name}"
        # Another worker may have put the same bytes there.
        self.uploads.put(path, content, force=True)
        return Delivered(parts, Rest(path, tuple(ranges)))

    def drop(self) -> None:
        self.limit.wait()
        for file in self.files:
            file.take_rest()

    def close(self) -> None:
        self.limit.close()


def uploads_of(path: str) -> Uploads:
    """Return what writes the objects of a URL's store."""
    store = store_of(path)
    if store is None:
        raise OutputError(f"{path} is not a URL", hint="use the URL of an object store")
    return store.uploads(path)
