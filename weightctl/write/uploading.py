"""Outputs in object stores: objects appear when all of them are complete.

Files are uploaded in parts, which the store keeps when a run is stopped. A journal of small objects
beside the output names the uploads, so that a run with the same plan and input continues them.
"""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import OutputError
from weightctl.formats.huggingface import open_companion
from weightctl.formats.sharded.detection import MANIFEST
from weightctl.storage.base import UploadedPart
from weightctl.storage.files import refresh
from weightctl.storage.remote.part_limit import PartLimit
from weightctl.storage.remote.upload import UploadWriter, part_size
from weightctl.system.interrupts import defer_signals
from weightctl.system.temporary import (
    JOURNAL,
    JOURNAL_PART,
    REST,
    new_token,
    temporary_name,
    token_of,
)
from weightctl.text.untyped import is_list, is_object
from weightctl.write.executors.places import ObjectUploads, Rest, RestRange, uploads_of
from weightctl.write.journal import parse_journal
from weightctl.write.object_journal import PUBLISHING, ObjectJournal
from weightctl.write.object_parts import cut_object, list_copies, list_gaps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

    from weightctl.formats.base import Layout
    from weightctl.plan.plan import Plan
    from weightctl.sharding.plan import ShardPlan
    from weightctl.storage.base import StoredObject, Uploads
    from weightctl.write.executors.places import Delivered
    from weightctl.write.journal import Purpose, Record
    from weightctl.write.outcome import Outcome

__all__ = ["UploadRun", "find_kept_uploads", "hold_upload"]

_JOURNAL = re.compile(rf"\.weightctl-[0-9a-f]{{8}}\.partial{JOURNAL_PART}")
# A run whose journal is this many seconds old has ended.
_ENDED_AFTER = 900.0
_REQUESTS = 8


class _BegunUpload(NamedTuple):
    """An upload in a journal: its id, the bytes of its parts, and the URL of its object."""

    id: str
    part: int
    path: str


class _StoppedUpload(NamedTuple):
    """What a stopped run has left: its token, its records, and uploads by the number of a file.

    `objects` are the URLs of its journal. `published` is the second, by the store's clock, when the
    run began to publish; 0 if it had not. `rests` are bytes of parts that its workers could not
    complete.
    """

    token: str
    objects: tuple[str, ...] = ()
    records: tuple[Record, ...] = ()
    uploads: Mapping[int, _BegunUpload] = {}
    published: float = 0.0
    lost: str = ""
    rests: tuple[Rest, ...] = ()


class UploadRun:
    """The uploads of a run; the objects get visible when all of them are complete.

    `kept` are records of a stopped run; `lost` says why there are none although there was a run.
    After an error the uploads are ended, unless the run is marked as `is_resumable`.
    """

    # Only a commit can be proposed.
    pull_request = ""

    def __init__(
        self,
        plan: Plan | ShardPlan,
        outcome: Outcome,
        uploads: Uploads,
        stopped: _StoppedUpload,
        *,
        identify: Callable[[], Purpose] | None,
        memory: int,
    ) -> None:
        self._outcome = outcome
        self._identify = identify
        self._uploads = uploads
        self._stopped = stopped
        self._limit = PartLimit(memory)
        self._copies = list_copies(plan, list(outcome.parts.values()), uploads)
        self._small: dict[str, bytes] = {}
        self._is_named = False
        self.is_resumable = bool(stopped.records)
        self.kept = stopped.records
        self.lost = stopped.lost
        self.files: list[UploadWriter] = []
        name = temporary_name(outcome.path, stopped.token)
        self._rest = f"{name}{REST}"
        self._journal = ObjectJournal(uploads, f"{name}{JOURNAL}-", stopped.objects)

    def open_files(self) -> list[UploadWriter]:
        """Begin or continue the uploads, with the headers; raises `OutputError`."""
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
            # Before the first part is sent, so that a run that is killed leaves no unknown parts.
            self._journal.begin(self._identify())
        for file, layout in zip(self.files, self._outcome.parts.values(), strict=True):
            file.begin_copies()
            file.hold_bytes(0, layout.header)
        for rest in self._stopped.rests:
            self._hold(rest, lost)
        return self.files

    def _hold(self, rest: Rest, lost: Collection[int] = ()) -> None:
        for number, offset, held in rest.list_held():
            if number not in lost:
                self.files[number].hold([(offset, held)])

    def place(self) -> ObjectUploads:
        """Return where workers write."""
        layouts = self._outcome.parts.values()
        return ObjectUploads(
            tuple(file.path for file in self.files),
            tuple(file.upload for file in self.files),
            tuple(part_size(self._uploads, layout.nbytes) for layout in layouts),
            tuple(self._least(layout) for layout in layouts),
            self._rest,
        )

    def _least(self, layout: Layout) -> int:
        """Return the least bytes of each part of an object but the last."""
        return max(self._uploads.least_part, -(-2 * layout.nbytes // self._uploads.most_parts))

    def accept(self, delivered: Delivered) -> None:
        """Take what a worker has sent; its records are to be added after this."""
        for number, parts in delivered.parts.items():
            self.files[number].add_sent(parts)
        if delivered.rest is not None:
            self._journal.add_lines([_format_rest(delivered.rest)])
            self._hold(delivered.rest)

    def _open(self, number: int, name: str, layout: Layout) -> tuple[UploadWriter, bool]:
        """Return the writer of a file, and whether the upload of a stopped run is continued."""
        path, size = self._outcome.path_of(name), part_size(self._uploads, layout.nbytes)
        cuts = cut_object(layout.nbytes, self._copies[number], size=size, least=self._least(layout))
        upload, parts = self._find_upload(number, path, size)
        # Of an object without an upload, only what workers have left is kept.
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
        """Whether the stopped run has made an object visible: it is whole, and not an older one."""
        began = self._stopped.published
        found = self._uploads.list_objects(path).get(path) if began else None
        # Stores tell whole seconds.
        return found is not None and found.nbytes == nbytes and found.written >= int(began)

    def _find_upload(
        self, number: int, path: str, size: int
    ) -> tuple[str, Mapping[int, UploadedPart]]:
        """Return the upload of a stopped run, and its parts; empty if it cannot be continued."""
        begun = self._stopped.uploads.get(number)
        if begun is None or begun.part != size:
            return "", {}
        parts = self._uploads.list_parts(path, begun.id)
        if parts is not None:
            return begun.id, parts
        self._uploads.abort(path, begun.id)  # a completion that has stopped half way may leave more
        return "", {}

    def begin_journal(self, purpose: Purpose, records: Iterable[Record]) -> ObjectJournal:
        """Begin or continue the journal; `records` are in the one that is continued."""
        del records
        self._journal.begin(purpose)
        return self._journal

    def put(self, name: str, content: bytes) -> None:
        """Keep a small file of the output until it is published."""
        self._small[name] = content

    def copy(self, name: str, path: str) -> None:
        """Keep a copy of a small file of the input until it is published."""
        source = open_companion(path)
        self._small[name] = source.read(0, source.size)
        source.refuse_change()

    def publish(self, *, force: bool) -> None:
        """Make all objects visible; what lists the others comes last.

        Raises `OutputError`; the same command then continues.
        """
        for file in self.files:
            file.finish()
        outcome = self._outcome
        last = {MANIFEST, *([outcome.index[0]] if outcome.index else ())}
        old = outcome.list_objects_to_remove() if force else []
        # From here on, objects that exist are those of this run.
        if self._identify is not None:
            self._journal.begin_publishing(self._identify())
        with defer_signals():
            if force:
                # Readers must not take new parts for those of an old index.
                lists = [outcome.path_of(name) for name in last & self._small.keys()]
                self._uploads.delete(lists)
            self._publish(
                [*self.files, *(name for name in self._small if name not in last)], force=force
            )
            self._publish([name for name in self._small if name in last], force=force)
            self._is_named = True
            self._uploads.delete(old)
            # The output is complete, whether or not the journal can be removed.
            with suppress(OutputError):
                self._remove_rests()
                self._journal.remove()
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
        """End all uploads, and remove the journal."""
        with defer_signals():
            if self._is_named:
                return
            self._limit.wait()
            for file in self.files:
                if file.upload:
                    with suppress(OutputError):
                        self._uploads.abort(file.path, file.upload)
            with suppress(OutputError):
                self._remove_rests()
                self._journal.remove()

    def _remove_rests(self) -> None:
        self._uploads.delete([*self._uploads.list_objects(self._rest)])

    def close(self) -> None:
        """End the threads that send parts."""
        self._limit.close()


@contextmanager
def hold_upload(
    plan: Plan | ShardPlan,
    outcome: Outcome,
    identify: Callable[[], Purpose] | None,
    *,
    force: bool,
    memory: int,
) -> Generator[UploadRun, None, None]:
    """Begin or continue the uploads of an output; `memory` is the limit for parts in memory.

    Uploads of runs that have ended, and cannot be continued, are removed. Raises `OutputError` if
    the output is refused.
    """
    uploads = uploads_of(outcome.path)
    refresh(outcome.path)
    stopped = _find_stopped(outcome.path, uploads, identify)
    outcome.refuse(force=force or bool(stopped.published))
    run = UploadRun(plan, outcome, uploads, stopped, identify=identify, memory=memory)
    try:
        yield run
    except BaseException:
        if not run.is_resumable:
            run.discard()
        raise
    finally:
        run.close()


def find_kept_uploads(outcome: Outcome, identify: Callable[[], Purpose]) -> tuple[Record, ...]:
    """Return the records of a stopped run that a run with this plan and input would continue."""
    return _find_stopped(outcome.path, uploads_of(outcome.path), identify, clear=False).records


def _find_stopped(
    path: str, uploads: Uploads, identify: Callable[[], Purpose] | None, *, clear: bool = True
) -> _StoppedUpload:
    """Return what a stopped run has left for one with this plan and input."""
    lost = ""
    for token, objects in _list_journals(path, uploads).items():
        contents = {each: uploads.read(each) for each in sorted(objects)}
        found = parse_journal(b"".join(contents.values()))
        newest = max(each.written for each in objects.values())
        has_ended = time.time() - newest > _ENDED_AFTER
        if found is None:
            # What is left of a journal that could not be removed.
            if clear and has_ended:
                uploads.delete(list(objects))
            continue
        before, records, others = found
        begun = dict(filter(None, map(_parse_upload, others)))
        now = None if identify is None else identify()
        if now == before:
            began = (objects[each].written for each in contents if PUBLISHING in contents[each])
            published = next(began, 0.0)
            rests = tuple(filter(None, map(_parse_rest, others)))
            return _StoppedUpload(
                token, tuple(contents), tuple(records), begun, published, rests=rests
            )
        lost = "the input has changed" if now is None or now.input != before.input else (
            "the plan has changed"
        )  # fmt: skip
        if clear and has_ended:
            for each in begun.values():
                uploads.abort(each.path, each.id)
            left = uploads.list_objects(f"{temporary_name(path, token)}{REST}")
            uploads.delete([*left, *objects])
    return _StoppedUpload(new_token(), lost=lost)


def _list_journals(path: str, uploads: Uploads) -> dict[str, dict[str, StoredObject]]:
    """Return the objects of journals for an output, by token and URL."""
    found: dict[str, dict[str, StoredObject]] = {}
    for url, stored in uploads.list_objects(f"{path}.weightctl-").items():
        if _JOURNAL.fullmatch(url.removeprefix(path)):
            found.setdefault(token_of(os.path.basename(url)), {})[url] = stored
    return found


def _parse_upload(entry: Mapping[str, Any]) -> tuple[int, _BegunUpload] | None:
    upload, number, size = entry.get("upload"), entry.get("of"), entry.get("part")
    if not is_object(entry) or type(number) is not int or type(size) is not int:
        return None
    return number, _BegunUpload(str(upload), size, str(entry.get("path")))


def _format_rest(rest: Rest) -> dict[str, Any]:
    """Return the entry of a journal for the bytes that a worker has left."""
    return {"rest": rest.path, "ranges": [list(each) for each in rest.ranges]}


def _parse_rest(entry: Mapping[str, Any]) -> Rest | None:
    path, ranges = entry.get("rest"), entry.get("ranges")
    if not isinstance(path, str) or not is_list(ranges):
        return None
    found: list[RestRange] = []
    for each in ranges:
        if not is_list(each) or len(each) != 4 or any(type(field) is not int for field in each):
            return None
        found.append(RestRange(*each))
    return Rest(path, tuple(found))
