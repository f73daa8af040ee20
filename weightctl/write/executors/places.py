"""The places that workers write to: temporary files, or uploads to an object store."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol, overload

from weightctl.storage.local import FileWriter
from weightctl.storage.remote.upload import PartLimit, UploadWriter
from weightctl.write.executors.rests import Rest, RestRange, uploads_of
from weightctl.write.objects.object_parts import cut_object, list_copies, list_gaps

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from weightctl.formats.base import Layout
    from weightctl.plan.plan import Plan
    from weightctl.sharding.plan import ShardPlan
    from weightctl.storage.base import UploadedPart, Uploads, Writer


class Delivered(NamedTuple):
    """The parts that a batch has sent to a store, by file and number, and its remaining bytes."""

    parts: Mapping[int, Mapping[int, UploadedPart]] = {}
    rest: Rest | None = None


class OpenPlace(Protocol):
    """The output files of a run, which a worker has opened."""

    @property
    def files(self) -> Sequence[Writer]:
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


class _FilesOnUse(Sequence[FileWriter]):
    """Writers of temporary files, by number, each opened when it is first used."""

    def __init__(self, files: Sequence[tuple[str, int]]) -> None:
        self._files = files
        self._lock = Lock()
        self._open: dict[int, FileWriter] = {}

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, index: int) -> FileWriter: ...
    @overload
    def __getitem__(self, index: slice) -> list[FileWriter]: ...
    def __getitem__(self, index: int | slice) -> FileWriter | list[FileWriter]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        with self._lock:
            if index not in self._open:
                path, nbytes = self._files[index]
                self._open[index] = FileWriter(path, nbytes, create=False)
            return self._open[index]

    def close(self) -> None:
        """Close those that are open."""
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
