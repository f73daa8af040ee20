"""Writes outputs to object stores, where the objects appear when all of them are complete.

Files are uploaded in parts, which the store keeps if a run is stopped. A journal of small objects
next to the output lists the uploads, so that a run with the same plan and input continues them.
"""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain, count
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import OutputError
from weightctl.formats.sharded.opening import MANIFEST
from weightctl.storage.base import UploadedPart
from weightctl.storage.files import refresh
from weightctl.storage.remote.failures import MissingObjectError
from weightctl.storage.remote.upload import PartLimit, UploadWriter, part_size
from weightctl.system.processes import defer_signals
from weightctl.system.temporary import (
    JOURNAL,
    JOURNAL_PART,
    REST,
    TEMPORARY,
    new_token,
    ranks_name,
    temporary_name,
    token_of,
)
from weightctl.text.untyped import is_object
from weightctl.write.executors.coordination import markers_of, ranks_token, read_done
from weightctl.write.executors.destinations import (
    ObjectUploads,
    format_rest,
    parse_rest,
    uploads_of,
)
from weightctl.write.journal import PUBLISHING, ObjectJournal, parse_journal
from weightctl.write.object_parts import cut_object, list_copies, list_gaps
from weightctl.write.run import OutputRun

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

    from weightctl.formats.base import Layout
    from weightctl.plan.plan import Plan
    from weightctl.sharding.plan import ShardPlan
    from weightctl.storage.base import StoredObject, Uploads
    from weightctl.write.executors.coordination import DoneBatch, Markers
    from weightctl.write.executors.destinations import Delivered, Rest
    from weightctl.write.journal import Purpose, Record
    from weightctl.write.outcome import Outcome

_JOURNAL = re.compile(rf"\.weightctl-[0-9a-f]{{8}}\.partial{JOURNAL_PART}")
# If a journal was not written for this number of seconds, its run counts as ended.
_ENDED_AFTER = 900.0
# A journal that changes while it is read is read this number of times more.
_TRIES = 3
_REQUESTS = 8


class UploadRun(OutputRun):
    """The uploads of a run; the objects become visible when all of them are complete."""

    def __init__(
        self,
        plan: Plan | ShardPlan,
        outcome: Outcome,
        uploads: Uploads,
        stopped: StoppedUpload,
        *,
        identify: Callable[[], Purpose] | None,
        memory: int,
        is_shared: bool = False,
    ) -> None:
        self._outcome = outcome
        self._source = plan.source
        self._is_shared = is_shared
        self._markers = None if is_shared else stopped.markers
        self._identify = identify
        self._uploads = uploads
        self._stopped = stopped
        self._limit = PartLimit(memory)
        self._copies = list_copies(plan, list(outcome.parts.values()), uploads)
        self._small: dict[str, bytes] = {}
        shared = chain.from_iterable(done.records for done in stopped.shared)
        self.kept = (*stopped.records, *shared)
        self.is_resumable = bool(self.kept)
        self.lost = stopped.lost
        self.files: list[UploadWriter] = []
        name = temporary_name(outcome.path, stopped.token)
        self._rest = f"{name}{REST}"
        self._has_rests = False
        self._journal = ObjectJournal(uploads, f"{name}{JOURNAL}-", stopped.objects)

    def open_files(self) -> list[UploadWriter]:
        """Begin or continue the uploads, and write the headers; raises `OutputError`."""
        parts = self._outcome.parts
        with ThreadPoolExecutor(_REQUESTS) as pool:
            opened = list(pool.map(self._open, count(), parts.keys(), parts.values()))
        self.files = [file for file, _ in opened]
        lost = {number for number, (_, is_kept) in enumerate(opened) if not is_kept}
        self.kept = tuple(record for record in self.kept if record.file not in lost)
        begun = {
            number: (file.upload, size)
            for number, (file, is_kept) in enumerate(opened)
            for size in [part_size(self._uploads, file.nbytes)]
            if file.upload and not is_kept
        }
        self._journal.add_lines(
            {"upload": upload, "of": number, "part": size, "path": self.files[number].path}
            for number, (upload, size) in begun.items()
        )
        if begun and self._identify is not None:
            # The journal is written before the first part is sent, so that it lists all uploads if
            # the run is killed.
            self._journal.begin(self._identify())
        for file, layout in zip(self.files, self._outcome.parts.values(), strict=True):
            file.begin_copies()
            file.hold_bytes(0, layout.header)
        shared = (done.rest for done in self._stopped.shared)
        for rest in (*self._stopped.rests, *filter(None, shared)):
            self._hold(rest, lost)
        return self.files

    def _hold(self, rest: Rest, lost: Collection[int] = ()) -> None:
        self._has_rests = True
        for number, offset, held in rest.list_held():
            if number not in lost:
                self.files[number].hold([(offset, held)])

    def place(self) -> ObjectUploads:
        ids = [file.upload for file in self.files]
        return _describe_place(self._outcome, self._uploads, self._stopped.token, ids)

    def accept(self, delivered: Delivered) -> None:
        """Add the parts that a worker has sent; the caller adds its records afterwards."""
        self._journal.is_immediate = True
        for number, parts in delivered.parts.items():
            self.files[number].add_sent(parts)
        if delivered.rest is not None:
            self._journal.add_lines([format_rest(delivered.rest)])
            self._hold(delivered.rest)

    def _open(self, number: int, name: str, layout: Layout) -> tuple[UploadWriter, bool]:
        """Return the writer of a file, and whether the upload of a stopped run is continued."""
        path, size = self._outcome.path_of(name), part_size(self._uploads, layout.nbytes)
        cuts = cut_object(
            layout.nbytes, self._copies[number], size=size, least=_least(self._uploads, layout)
        )
        upload, parts = self._find_upload(number, path, size)
        # Small objects have no upload, so only the rests of workers are kept.
        is_kept = bool(upload) or layout.nbytes <= size
        is_published = not is_kept and self._has_published(path, layout.nbytes)
        if is_published:
            parts = {each: UploadedPart("", 0) for each in range(1, len(cuts) + 1)}
        elif not upload and layout.nbytes > size:
            upload = self._uploads.create(path)
        writer = UploadWriter(
            path,
            layout.nbytes,
            uploads=self._uploads,
            limit=self._limit,
            upload=upload,
            parts=cuts,
            gaps=list_gaps(layout),
            kept=parts,
        )
        writer.is_published = is_published and layout.nbytes > size
        return writer, is_kept or writer.is_published

    def _has_published(self, path: str, nbytes: int) -> bool:
        """Whether the stopped run has published an object: it has the right size, and is new."""
        began = self._stopped.published
        found = self._uploads.list_objects(path).get(path) if began else None
        # The times of stores are in whole seconds.
        return found is not None and found.nbytes == nbytes and found.written >= int(began)

    def _find_upload(
        self, number: int, path: str, size: int
    ) -> tuple[str, Mapping[int, UploadedPart]]:
        """Return the id and the parts of a stopped run's upload; empty if it cannot continue."""
        begun = self._stopped.uploads.get(number)
        if begun is None or begun.part != size:
            return "", {}
        parts = self._uploads.list_parts(path, begun.id)
        if parts is not None:
            return begun.id, parts
        self._uploads.abort(path, begun.id)  # an interrupted completion may have left an object
        return "", {}

    def begin_journal(self, purpose: Purpose, records: Iterable[Record]) -> ObjectJournal:
        """Begin or continue the journal; `records` are ignored, since the journal has them."""
        del records
        self._journal.begin(purpose)
        if self._markers is not None:
            self._take_over_shared()
        return self._journal

    def add_shared(self) -> None:
        """Add the finished batches of processes that shared the run to the journal."""
        rests = filter(None, (done.rest for done in self._stopped.shared))
        self._journal.add_lines(map(format_rest, rests))
        for done in self._stopped.shared:
            self._journal.add(done.records)
        self._journal.flush()

    def _take_over_shared(self) -> None:
        self.add_shared()
        if self._markers is not None:
            self._markers.remove()

    def put(self, name: str, content: bytes) -> None:
        self._small[name] = content

    def publish(self, *, force: bool) -> None:
        """Make all objects visible; the index or manifest comes last.

        Raises `OutputError` if that fails; running the same command again then continues.
        """
        for file in self.files:
            file.finish()
        if any(self._copies):
            # Some stores ignore the condition that the source of a copy is unchanged.
            self._source.refuse_change()
        outcome = self._outcome
        last = {MANIFEST, *([outcome.index[0]] if outcome.index else ())}
        old = outcome.list_objects_to_remove() if force else []
        # From now on, existing objects may be those of this run.
        if self._identify is not None:
            self._journal.begin_publishing(self._identify())
            self.is_resumable = True
        with defer_signals():
            if force:
                # An old index must not refer to new parts.
                lists = [outcome.path_of(name) for name in last & self._small.keys()]
                self._uploads.delete(lists)
            self._publish(
                [*self.files, *(name for name in self._small if name not in last)], force=force
            )
            self._publish([name for name in self._small if name in last], force=force)
            self.is_committed = True
            self._uploads.delete(old)
            # The output is complete, even if the journal cannot be removed.
            with suppress(OutputError):
                self._journal.remove()
                self._remove_rests()
                self._remove_earlier_markers()
        refresh(outcome.path)

    def _publish(self, items: Sequence[UploadWriter | str], *, force: bool) -> None:
        def publish(item: UploadWriter | str) -> None:
            if isinstance(item, str):
                path = self._outcome.path_of(item)
                is_ours = bool(self._stopped.published)
                self._uploads.put(path, self._small[item], force=force or is_ours)
            elif not item.is_published:
                item.publish(force=force or bool(self._stopped.published and not item.upload))

        with ThreadPoolExecutor(_REQUESTS) as pool:
            list(pool.map(publish, items))

    def discard(self) -> None:
        """Abort all uploads, and remove the journal."""
        with defer_signals():
            if self.is_committed:
                return
            self._limit.wait()
            for file in self.files:
                if file.upload:
                    with suppress(OutputError):
                        self._uploads.abort(file.path, file.upload)
            with suppress(OutputError):
                self._remove_rests()
                self._journal.remove()
                if self._markers is not None:
                    self._markers.remove()

    def _remove_rests(self) -> None:
        if self._has_rests:
            self._uploads.delete([*self._uploads.list_objects(self._rest)])

    def _remove_earlier_markers(self) -> None:
        """Remove the markers of replaced outputs, but not those of this run, which are in use."""
        path, token = self._outcome.path, ""
        if self._is_shared and self._identify is not None:
            token = ranks_token(self._identify())
        own = f"{ranks_name(path, token)}/"
        pattern = re.compile(rf"{re.escape(path)}{TEMPORARY}/.*")
        found = self._uploads.list_objects(f"{path}.weightctl-")
        earlier = [url for url in found if pattern.fullmatch(url) and not url.startswith(own)]
        self._uploads.delete(earlier)

    def close(self) -> None:
        self._limit.close()


@contextmanager
def hold_upload(
    plan: Plan | ShardPlan,
    outcome: Outcome,
    identify: Callable[[], Purpose] | None,
    *,
    force: bool,
    memory: int,
    is_shared: bool = False,
) -> Generator[UploadRun, None, None]:
    """Begin or continue the uploads of an output; `memory` is the limit of parts in memory.

    Uploads of ended runs that cannot be continued are removed. Raises `OutputError` if the output
    cannot or must not be written.
    """
    uploads = uploads_of(outcome.path)
    refresh(outcome.path)
    stopped = find_stopped_upload(outcome.path, uploads, identify)
    outcome.refuse(force=force or bool(stopped.published))
    run = UploadRun(
        plan, outcome, uploads, stopped, identify=identify, memory=memory, is_shared=is_shared
    )
    with run:
        yield run


def find_kept_uploads(outcome: Outcome, identify: Callable[[], Purpose]) -> tuple[Record, ...]:
    """Return the records of a stopped run that a run with this plan and input would continue."""
    found = find_stopped_upload(outcome.path, uploads_of(outcome.path), identify, clear=False)
    return (*found.records, *chain.from_iterable(done.records for done in found.shared))


def find_shared_uploads(
    outcome: Outcome, identify: Callable[[], Purpose]
) -> tuple[ObjectUploads, tuple[Record, ...]] | None:
    """Return the uploads and the records of a shared run's journal; None if there is none."""
    uploads = uploads_of(outcome.path)
    found = find_stopped_upload(outcome.path, uploads, identify, clear=False)
    if found.markers is None:
        return None
    ids = [found.uploads[number].id if number in found.uploads else "" for number in
           range(len(outcome.parts))]  # fmt: skip
    return _describe_place(outcome, uploads, found.token, ids), found.records


def _describe_place(
    outcome: Outcome, uploads: Uploads, token: str, ids: Sequence[str]
) -> ObjectUploads:
    """Return the place that workers write to: the uploads with these ids, by file."""
    layouts = outcome.parts.values()
    return ObjectUploads(
        tuple(map(outcome.path_of, outcome.parts)),
        tuple(ids),
        tuple(part_size(uploads, layout.nbytes) for layout in layouts),
        tuple(_least(uploads, layout) for layout in layouts),
        temporary_name(outcome.path, token) + REST,
    )


def _least(uploads: Uploads, layout: Layout) -> int:
    """Return the smallest size of an object's parts, except the last one."""
    return max(uploads.least_part, -(-2 * layout.nbytes // uploads.most_parts))


# Finds the uploads that a stopped run has left in an object store, and their journal.


class BegunUpload(NamedTuple):
    """An upload in a journal: its id, the size of its parts, and the URL of its object."""

    id: str
    part: int
    path: str


class StoppedUpload(NamedTuple):
    """The state of a stopped run: its token, its records, and its uploads by file number.

    If no run can be continued, the token is new, and `lost` is the reason if there was a run.
    `objects` are the URLs of the journal. `published` is the time, in seconds by the store's clock,
    at which the run began to publish; 0 if it had not begun. `rests` are bytes of parts that its
    workers could not complete. `shared` are batches of processes that shared the run; they are not
    in the journal, but in the `markers`.
    """

    token: str
    objects: tuple[str, ...] = ()
    records: tuple[Record, ...] = ()
    uploads: Mapping[int, BegunUpload] = {}
    published: float = 0.0
    lost: str = ""
    rests: tuple[Rest, ...] = ()
    shared: tuple[DoneBatch, ...] = ()
    markers: Markers | None = None


def find_stopped_upload(
    path: str, uploads: Uploads, identify: Callable[[], Purpose] | None, *, clear: bool = True
) -> StoppedUpload:
    """Return the state of a stopped run with the same plan and input.

    If `clear` is set, the uploads and journals of other runs that have ended are removed.
    """
    # A process that completes a shared output removes the journal, maybe while it is read here.
    for _ in range(_TRIES):
        with suppress(MissingObjectError):
            return _find_upload(path, uploads, identify, clear=clear)
    return _find_upload(path, uploads, identify, clear=clear)


def _find_upload(
    path: str, uploads: Uploads, identify: Callable[[], Purpose] | None, *, clear: bool
) -> StoppedUpload:
    lost = ""
    for token, objects in _list_journals(path, uploads).items():
        contents = {each: uploads.read(each) for each in sorted(objects)}
        found = parse_journal(b"".join(contents.values()))
        newest = max(each.written for each in objects.values())
        has_ended = time.time() - newest > _ENDED_AFTER
        if found is None:
            # These objects are left from a journal that could not be removed completely.
            if clear and has_ended:
                uploads.delete(list(objects))
            continue
        before, records, others = found
        begun = dict(filter(None, map(_parse_upload, others)))
        now = None if identify is None else identify()
        if now == before:
            began = (objects[each].written for each in contents if PUBLISHING in contents[each])
            published = next(began, 0.0)
            rests = tuple(filter(None, map(parse_rest, others)))
            markers = markers_of(path, before)
            return StoppedUpload(
                token, tuple(contents), tuple(records), begun, published, rests=rests,
                shared=tuple(read_done(markers).values()), markers=markers,
            )  # fmt: skip
        lost = "the input has changed" if now is None or now.input != before.input else (
            "the plan has changed"
        )  # fmt: skip
        if clear and has_ended:
            for each in begun.values():
                uploads.abort(each.path, each.id)
            left = uploads.list_objects(f"{temporary_name(path, token)}{REST}")
            uploads.delete([*left, *objects])
    return StoppedUpload(new_token(), lost=lost)


def _list_journals(path: str, uploads: Uploads) -> dict[str, dict[str, StoredObject]]:
    """Return the objects of an output's journals, by token and URL."""
    found: dict[str, dict[str, StoredObject]] = {}
    for url, stored in uploads.list_objects(f"{path}.weightctl-").items():
        if _JOURNAL.fullmatch(url.removeprefix(path)):
            found.setdefault(token_of(os.path.basename(url)), {})[url] = stored
    return found


def _parse_upload(entry: Mapping[str, Any]) -> tuple[int, BegunUpload] | None:
    upload, number, size = entry.get("upload"), entry.get("of"), entry.get("part")
    if not is_object(entry) or type(number) is not int or type(size) is not int:
        return None
    return number, BegunUpload(str(upload), size, str(entry.get("path")))
