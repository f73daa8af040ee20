"""The places that workers write to: temporary files, or uploads to an object store.

Bytes of upload parts that a worker could not complete are stored in an object next to the output.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from weightctl.errors import OutputError
from weightctl.storage.local import FileWriter
from weightctl.storage.location import store_of
from weightctl.storage.remote.upload import PartLimit, UploadWriter
from weightctl.text.untyped import is_list
from weightctl.write.object_parts import cut_object, list_copies, list_gaps

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from weightctl.formats.base import Layout
    from weightctl.plan.plan import Plan
    from weightctl.sharding.plan import ShardPlan
    from weightctl.storage.base import ByteRange, UploadedPart, Uploads
    from weightctl.write.tasks import NumberedWriters


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
        nbytes = min(nbytes, self._nbytes - start)
        return uploads_of(self._path).read(self._path, self._start + start, nbytes)

    def part(self, start: int, stop: int) -> _RestBytes:
        return _RestBytes(self._path, self._start + start, stop - start)


def uploads_of(path: str) -> Uploads:
    """Return the interface that writes objects of a URL's store."""
    store = store_of(path)
    if store is None:
        raise OutputError(f"{path} is not a URL", hint="use the URL of an object store")
    return store.uploads(path)


class Delivered(NamedTuple):
    """The parts that a batch has sent to a store, by file and number, and its remaining bytes."""

    parts: Mapping[int, Mapping[int, UploadedPart]] = {}
    rest: Rest | None = None


class OpenPlace(Protocol):
    """The output files of a run, which a worker has opened."""

    @property
    def files(self) -> NumberedWriters:
        """The writers of all files."""
        ...

    def deliver(self, name: str, files: Collection[int], /, *, is_local: bool) -> Delivered:
        """Make the bytes that a batch has written to `files` durable; `name` is the batch's name.

        If `is_local` is set, workers do not wait for the disk, since the run itself does.
        """
        ...

    def drop(self) -> None:
        """Drop the bytes that a failed batch has written."""
        ...

    def close(self) -> None:
        """Close the files."""
        ...


class Place(Protocol):
    """The place that the workers of a run write to; it is pickled and sent to them."""

    def open(
        self, plan: Plan | ShardPlan, layouts: Sequence[Layout], /, *, memory: int
    ) -> OpenPlace:
        """Open all files; at most `memory` bytes wait to be sent."""
        ...


class TemporaryFiles(NamedTuple):
    """The paths of existing temporary files."""

    paths: tuple[str, ...]

    def open(
        self, plan: Plan | ShardPlan, layouts: Sequence[Layout], /, *, memory: int
    ) -> _OpenFiles:
        """Return the files, which are opened on use; a missing one raises `OutputError` then."""
        del plan, memory
        pairs = zip(self.paths, layouts, strict=True)
        return _OpenFiles([(path, each.nbytes) for path, each in pairs])


class _FilesOnUse:
    """Writers of temporary files, by number, each opened when it is first used."""

    def __init__(self, files: Sequence[tuple[str, int]]) -> None:
        self._files = files
        self._lock = Lock()
        self._open: dict[int, FileWriter] = {}

    def __getitem__(self, number: int) -> FileWriter:
        with self._lock:
            if number not in self._open:
                path, nbytes = self._files[number]
                self._open[number] = FileWriter(path, nbytes, create=False)
            return self._open[number]

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()


class _OpenFiles:
    """Temporary files that a worker has open during a batch.

    Between batches they are closed: a worker does not learn when a run ends, and the room of an
    output that is deleted is free once no process has it open.
    """

    def __init__(self, files: Sequence[tuple[str, int]]) -> None:
        self.files = _FilesOnUse(files)

    def deliver(self, name: str, files: Collection[int], /, *, is_local: bool) -> Delivered:
        del name
        for file in () if is_local else sorted(files):
            self.files[file].sync()
        self.files.close()
        return Delivered()

    def drop(self) -> None:
        """Close the files; another worker writes the same bytes over what was written."""
        self.files.close()

    def close(self) -> None:
        self.files.close()


class ObjectUploads(NamedTuple):
    """Uploads in parts: the URL, the id, the size of parts and their least size for each file.

    `rest` is the beginning of the URLs of objects with the remaining bytes of batches.
    """

    paths: tuple[str, ...]
    ids: tuple[str, ...]
    sizes: tuple[int, ...]
    least: tuple[int, ...]
    rest: str

    def open(
        self, plan: Plan | ShardPlan, layouts: Sequence[Layout], /, *, memory: int
    ) -> _OpenUploads:
        """Return writers of the uploads, without sending anything."""
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
    """Uploads, which a worker has opened."""

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
        # Another worker may have written the same bytes to this object.
        self.uploads.put(path, content, force=True)
        return Delivered(parts, Rest(path, tuple(ranges)))

    def drop(self) -> None:
        self.limit.wait()
        for file in self.files:
            file.take_rest()

    def close(self) -> None:
        self.limit.close()
