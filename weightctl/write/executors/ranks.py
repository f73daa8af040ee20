"""Runs that processes share without an executor: each claims tasks, and one completes the output.

Every process makes the same plan, and numbers the same batches of tasks. Markers next to the output
record the batches that are claimed and done (see `coordination`). The process with the
first claim creates the files, and the process that claims the end gives them their final names.
Some markers of a complete output are kept, so that a process that is started again does nothing.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial as bind
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError, OutputError
from weightctl.storage.files import exists, file_size, open_reader, prepare, refresh
from weightctl.storage.location import is_remote
from weightctl.write.executors import WORKERS, WorkerCounts
from weightctl.write.executors.coordination import (
    CLAIM,
    DONE,
    Membership,
    find_rank,
    format_done,
    format_json,
    markers_of,
    parse_done,
    parse_json,
    read_done,
)
from weightctl.write.executors.destinations import uploads_of
from weightctl.write.executors.distribution import (
    PATIENCE,
    SLOW,
    cut_batches,
    list_keyed_tasks,
    make_job,
)
from weightctl.write.executors.worker import PlannedWork, do_batch
from weightctl.write.object_uploads import UploadRun, find_shared_uploads
from weightctl.write.outcome import identify_run
from weightctl.write.partial import find_shared_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from weightctl.plan.plan import Plan
    from weightctl.sharding.plan import ShardPlan
    from weightctl.write.executors.coordination import Markers
    from weightctl.write.executors.destinations import OpenPlace, Place
    from weightctl.write.executors.distribution import Batch, Distribution
    from weightctl.write.executors.worker import Job
    from weightctl.write.journal import Purpose, Record
    from weightctl.write.outcome import Outcome
    from weightctl.write.run import OutputRun
    from weightctl.write.tasks import KeyedTask, Work

_BEGUN = "begun"
_RECORDS = "records"
# The beginning of the name of a complete output's marker, which the digest of its files follows.
_PUBLISHED = "published-"
_FAILED = "failed"
_BEGIN, _END = "begin", "end"
# The seconds between two looks at the markers.
_POLL = 1.0


class FoundRun(NamedTuple):
    """A run that has begun: where to write, the tasks to do, and the journal's records.

    The tasks of a run do not change until its journal does.
    """

    place: Place
    tasks: Sequence[KeyedTask]
    records: Sequence[Record]
    kept_bytes: int

    def digest(self) -> str:
        """Return a digest of the tasks, which is different if batches are numbered differently."""
        return sha256(repr([task.place for task in self.tasks]).encode()).hexdigest()


class RankRun(NamedTuple):
    """The functions of a run that processes share.

    `begin` creates the files and the journal, or continues those of a stopped run. `find` returns
    the run that has begun, None if there is no journal. `finish` completes the output, and returns
    the records of all tasks. `discard` removes everything.
    """

    planned: PlannedWork
    purpose: Purpose
    begin: Callable[[], object]
    find: Callable[[], FoundRun | None]
    finish: Callable[[], Iterable[Record]]
    discard: Callable[[], object]


class RanksResult(NamedTuple):
    """The records of all tasks, and the counts of this process.

    `is_last` says whether this process has completed the output.
    """

    records: tuple[Record, ...]
    counts: WorkerCounts
    is_last: bool
    kept_bytes: int


def share_run(
    distribution: Distribution, run: RankRun, progress: Callable[[int], object] | None
) -> RanksResult:
    """Do a part of the tasks of a run, and return when its output is complete.

    Raises the errors of the work, after which the other processes stop too.
    """
    outcome = run.planned.outcome
    markers = markers_of(outcome.path, run.purpose)
    with markers.hold():
        _forget_earlier(markers, outcome)
        member = Membership(markers, find_rank())
        try:
            with member:
                share = _RankProcess(distribution, run, markers, member, progress)
                try:
                    return share.run()
                except Exception as error:
                    share.note_failure(error)
                    raise
        finally:
            # This process is not a member any more. If several leave at the same time, at least one
            # of them finds no other members.
            _clear_after_last(run, markers, member)


def _clear_after_last(run: RankRun, markers: Markers, member: Membership) -> None:
    """If no other process is left, remove markers that are not needed; after a failure, all."""
    names = markers.list_names()
    if member.list_others(names):
        return
    if _FAILED in names:
        run.discard()
        markers.remove()
    elif _has_published(names):
        markers.remove(name for name in names if not _is_of_complete(name))


def _is_of_complete(name: str) -> bool:
    """Whether a marker is kept as long as the output."""
    return name == _RECORDS or name.startswith(_PUBLISHED)


def _forget_earlier(markers: Markers, outcome: Outcome) -> None:
    """Remove the markers of complete outputs that were removed or changed since."""
    # Listed before looking at the files, which another process of this run may complete meanwhile.
    published = [name for name in markers.list_names() if name.startswith(_PUBLISHED)]
    if published:
        is_there = _is_complete(outcome)
        own = f"{_PUBLISHED}{_digest_files(outcome)}" if is_there else ""
        stale = [name for name in published if name != own]
        markers.remove([*stale, *([_RECORDS] if stale == published else [])])


def _is_complete(outcome: Outcome) -> bool:
    """Whether all files of an output exist, with their sizes."""
    refresh(outcome.path)
    sizes = {outcome.path_of(name): layout.nbytes for name, layout in outcome.parts.items()}
    return all(exists(path) and file_size(path) == size for path, size in sizes.items())


def _digest_files(outcome: Outcome) -> str:
    """Return a digest of the times at which the files of an output were written."""
    paths = [outcome.path_of(name) for name in outcome.parts]
    prepare(paths)
    readers = [open_reader(path) for path in paths]
    for reader in readers:
        reader.close()
    return sha256(repr([reader.written for reader in readers]).encode()).hexdigest()[:16]


class _RankProcess:
    """The work of this process on a shared run."""

    def __init__(
        self,
        distribution: Distribution,
        run: RankRun,
        markers: Markers,
        member: Membership,
        progress: Callable[[int], object] | None,
    ) -> None:
        self._distribution = distribution
        self._run = run
        self._markers = markers
        self._member = member
        self._progress = progress
        self._batches: list[Batch] = []
        self._seen: set[int] = set()
        self._claimed: dict[str, float] = {}
        self._counts = WorkerCounts()
        self._longest = 0.0

    def run(self) -> RanksResult:
        """Do tasks until none is left, then complete the output or wait for its completion."""
        names = self._markers.list_names()
        if _FAILED in names and not self._member.list_others(names):
            self._markers.remove([_FAILED])
        found, kept_bytes = self._begin(), 0
        if found is not None:
            kept_bytes = found.kept_bytes
            self._report(kept_bytes)
            self._counts = WORKERS.counts = WorkerCounts(len(self._batches))
            if self._batches:
                self._do_batches(found.place)
        is_last = self._end()
        records = parse_done(self._markers.read(_RECORDS) or b"").records
        return RanksResult(records, self._counts, is_last, kept_bytes)

    def _do_batches(self, place: Place) -> None:
        planned = self._run.planned
        job = make_job(self._distribution, self._run.purpose, place, token=self._member.token)
        layouts = list(planned.outcome.parts.values())
        try:
            opened = place.open(planned.plan, layouts, memory=job.memory)
        except OutputError:
            # Other processes may have done all tasks and renamed the files in the meantime.
            self._note_done(self._look())
            if len(self._seen) == len(self._batches):
                return
            raise
        try:
            while (number := self._take()) is not None:
                self._do(job, opened, number)
        finally:
            opened.close()

    def _count(self, **counts: int) -> None:
        self._counts = WORKERS.counts = self._counts.add(**counts)

    def _begin(self) -> FoundRun | None:
        """Wait until the run has begun, or begin it; None if its output is complete."""
        while True:
            names = self._look()
            if _has_published(names):
                return None
            begun = parse_json(self._markers.read(_BEGUN))
            found = self._run.find() if begun else None
            if begun and found is None and self._has_records():
                return None  # a process has completed the output, and ended before writing a marker
            if found is not None and begun.get("tasks") == found.digest():
                self._batches = cut_batches(found.tasks, int(begun["size"]))
                return found
            if self._may_lead(names):
                self._lead()
            else:
                time.sleep(_POLL)

    def _may_lead(self, names: Sequence[str]) -> bool:
        """Claim the beginning of the run, unless a process completes the output now."""
        ends = self._member.list_claims(_END, names)
        if ends and not self._member.is_void(ends[-1]):
            return False
        # The process that held the claim may have completed the output since `names` were listed.
        return self._member.claim(_BEGIN, names) and not _has_published(self._look())

    def _has_records(self) -> bool:
        """Whether a process had begun to complete the output, and all files exist."""
        return self._markers.read(_RECORDS) is not None and _is_complete(self._run.planned.outcome)

    def _lead(self) -> None:
        self._run.begin()
        found = self._run.find()
        if found is None:
            raise OutputError(
                f"{self._run.planned.outcome.path}: the journal that was just written is missing",
                hint="check whether another program removes files there",
            )
        # The journal now has the records of batches that were numbered differently.
        names = self._markers.list_names()
        begin = f"{CLAIM}{_BEGIN}-"
        old = [name for name in names if name.startswith((DONE, CLAIM, _RECORDS))]
        self._markers.remove([_BEGUN, *(name for name in old if not name.startswith(begin))])
        size = self._distribution.task_size
        self._markers.put(_BEGUN, format_json({"size": size, "tasks": found.digest()}))

    def _look(self) -> list[str]:
        """Return the names of all markers; raises `OutputError` if another process has failed."""
        names = self._markers.list_names()
        if _FAILED in names:
            entry = parse_json(self._markers.read(_FAILED))
            raise OutputError(
                f"the process of rank {entry.get('rank')} has failed: {entry.get('error')}",
                hint="remove the cause, and start all processes again",
            )
        return names

    def _take(self) -> int | None:
        """Claim a batch and return its number; None if all are done."""
        count = len(self._batches)
        identity = self._member.identity
        share = identity.rank / identity.ranks if identity.ranks else identity.rank * 0.618034
        first = int(share % 1 * count)
        while True:
            names = self._look()
            self._note_done(names)
            if len(self._seen) == count or _has_published(names):
                return None
            order = [each % count for each in range(first, first + count)]
            left = [number for number in order if number not in self._seen]
            for number in left:
                is_free = not self._member.list_claims(_key(number), names)
                if is_free and self._member.claim(_key(number), names):
                    return number
            for number in left:
                if self._take_over(number, names):
                    return number
            time.sleep(_POLL)

    def _take_over(self, number: int, names: Sequence[str]) -> bool:
        """Claim a batch whose process has ended, or is so slow that it may never end."""
        claims = self._member.list_claims(_key(number), names)
        if not claims:
            return False
        if self._member.is_void(claims[-1]):
            if self._markers.read(f"{DONE}{_key(number)}") is not None:
                return False  # it was done after the names were listed
            taken = self._member.claim(_key(number), names)
            self._count(lost=taken)
            return taken
        since = self._claimed.setdefault(claims[-1], time.monotonic())
        is_slow = time.monotonic() - since > max(SLOW * self._longest, PATIENCE)
        if not is_slow or len(claims) > 1:
            return False
        taken = self._member.claim(_key(number), names, even_if_running=True)
        self._count(copies=taken)
        return taken

    def _note_done(self, names: Sequence[str]) -> None:
        """Report the progress of batches that other processes have done."""
        for name in names:
            if name.startswith(DONE):
                number = int(name.removeprefix(DONE))
                self._report(0 if number in self._seen else self._batches[number].made)
                self._seen.add(number)

    def _report(self, nbytes: int) -> None:
        if self._progress is not None and nbytes:
            self._progress(nbytes)

    def _do(self, job: Job, place: OpenPlace, number: int) -> None:
        keys = tuple(task.key for task in self._batches[number].tasks)
        try:
            result = do_batch(self._run.planned, place, job, number, keys)
        except OutputError:
            # If this process is slow, others may have done its tasks and completed the output.
            names = self._markers.list_names()
            if f"{DONE}{_key(number)}" in names or _has_published(names):
                return
            raise
        self._longest = max(self._longest, result.seconds)
        rest = result.delivered.rest
        content = format_done(result.records, rest)
        is_late = _has_published(self._markers.list_names())
        if not is_late and self._markers.create(f"{DONE}{_key(number)}", content):
            self._count(done=1)
        elif rest is not None:
            uploads_of(rest.path).delete([rest.path])

    def _end(self) -> bool:
        """Complete the output and return True, or return False when another process has."""
        while True:
            names = self._look()
            if _has_published(names):
                return False
            if self._member.claim(_END, names):
                found = self._run.find()
                # A process that has ended in the meantime may have completed it.
                if found is not None or not self._has_records():
                    self._finish(found)
                self._markers.put(f"{_PUBLISHED}{_digest_files(self._run.planned.outcome)}", b"")
                return True
            time.sleep(_POLL)

    def _finish(self, found: FoundRun | None) -> None:
        """Write the records of all tasks to a marker, for other processes; complete the output."""
        kept, done = () if found is None else found.records, read_done(self._markers).values()
        records = [*kept, *chain.from_iterable(each.records for each in done)]
        self._markers.put(_RECORDS, format_done(records, None))
        made = [*self._run.finish()]
        if len(made) != len(records):  # lost tasks were done again
            self._markers.put(_RECORDS, format_done(made, None))

    def note_failure(self, error: Exception) -> None:
        """Write a marker that stops the other processes, if they would fail in the same way."""
        if not isinstance(error, OutputError | FormatError | OSError):
            entry = {"rank": self._member.identity.rank, "error": str(error)}
            self._markers.create(_FAILED, format_json(entry))


def _has_published(names: Iterable[str]) -> bool:
    return any(name.startswith(_PUBLISHED) for name in names)


def _key(number: int) -> str:
    return f"{number:06d}"


def write_shared(
    distribution: Distribution,
    plan: Plan | ShardPlan,
    outcome: Outcome,
    work: Work,
    *,
    hold: Callable[[], AbstractContextManager[OutputRun]],
    finish: Callable[[], list[Record]],
    progress: Callable[[int], object] | None,
) -> RanksResult:
    """Do a part of the work on an output, and return when it is complete.

    `hold` locks the output while its files are created, and `finish` gives them their final names.
    """
    identify = bind(identify_run, plan, outcome)

    def begin() -> None:
        with hold() as partial:
            partial.open_files()
            kept = work.select(partial.kept)
            partial.begin_journal(identify(), kept.values()).close()
            if isinstance(partial, UploadRun):
                partial.add_shared()

    def find() -> FoundRun | None:
        search = find_shared_uploads if is_remote(outcome.path) else find_shared_files
        found = search(outcome, identify)
        if found is None:
            return None
        place, records = found
        kept = work.select(records)
        kept_bytes = work.count_bytes(kept)
        return FoundRun(place, list_keyed_tasks(work, kept), [*kept.values()], kept_bytes)

    def discard() -> None:
        with suppress(_DiscardedError), hold() as partial:
            partial.is_resumable = False
            raise _DiscardedError

    planned = PlannedWork(plan, outcome, work)
    run = RankRun(planned, identify(), begin, find, finish, discard)
    return share_run(distribution, run, progress)


class _DiscardedError(Exception):
    """Raised to leave the hold on an output whose files are not needed."""
