"""The journal of a run, which records the work that is complete and on the disk.

The first line identifies the plan and the input of the run. A line for each unit of work follows.
With the journal, the same command can continue a stopped run. In an object store, where objects
cannot be appended to, the journal is a series of objects.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from itertools import compress
from queue import Empty, SimpleQueue
from threading import RLock, Thread
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from weightctl.errors import OutputError
from weightctl.storage.base import cannot_write
from weightctl.system.files import open_file, sync_data, write_all
from weightctl.system.processes import defer_signals
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from weightctl.storage.base import Uploads, Writer

# A run does not write a journal in its first seconds, since starting over is cheap.
BEGIN_AFTER = 0.5
# Waiting for a disk takes long, so work is recorded at this interval, in seconds; work after the
# last record is lost in a crash.
_SECONDS = 0.03


class Purpose(NamedTuple):
    """The purpose of a run: the SHA-256 of its plan, and of the fingerprint of its input.

    `input` is empty if the input is in memory, and cannot be recognized by another run.
    """

    plan: str
    input: str


class Record(NamedTuple):
    """A unit of work that is complete and on the disk; `file` is the number of the output file.

    `key` identifies the work within the plan, and `facts` are results such as checksums.
    """

    file: int
    key: str
    facts: Mapping[str, Any]


class Journal:
    """A journal that is open for writing; readers ignore an incomplete last line."""

    def __init__(self, path: str, purpose: Purpose, records: Iterable[Record]) -> None:
        """Write a new journal, and replace an existing one; raises `OutputError` if that fails."""
        self._path = path
        new = f"{path}.new"
        try:
            self._descriptor = open_file(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            raise cannot_write(path, error) from error
        try:
            self._append([format_line(purpose._asdict()), *map(format_record, records)])
            os.replace(new, path)
        except OSError as error:
            self.close()
            raise cannot_write(path, error) from error

    def add(self, records: Iterable[Record]) -> None:
        """Append records, and wait until they are on the disk.

        Raises `OutputError` if that fails.
        """
        try:
            self._append(map(format_record, records))
        except OSError as error:
            raise cannot_write(self._path, error) from error

    def _append(self, lines: Iterable[str]) -> None:
        write_all(self._descriptor, "".join(lines).encode("ascii"))
        sync_data(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def format_record(record: Record) -> str:
    return format_line({"file": record.file, "key": record.key, **record.facts})


def format_line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry) + "\n"


def read_journal(path: str) -> tuple[Purpose, list[Record]] | None:
    """Return the purpose and the records of a journal; None if it is missing or invalid."""
    with suppress(OSError):
        with open(path, "rb") as file:
            found = parse_journal(file.read())
        return found and found[:2]
    return None


def parse_journal(
    content: bytes,
) -> tuple[Purpose, list[Record], list[Mapping[str, Any]]] | None:
    """Return the purpose, the records and the other entries of a journal; None if it is invalid.

    A line that a crash has cut off, and all lines after it, are ignored.
    """
    lines = content.split(b"\n")[:-1]
    purpose = _parse_purpose(_parse(lines[0])) if lines else None
    if purpose is None:
        return None
    return (purpose, *parse_entries(lines[1:]))


def parse_entries(lines: Iterable[bytes]) -> tuple[list[Record], list[Mapping[str, Any]]]:
    """Return the records and the other entries in lines, up to the first invalid one."""
    records: list[Record] = []
    others: list[Mapping[str, Any]] = []
    for line in lines:
        entry = _parse(line)
        record = _parse_record(entry)
        if record is not None:
            records.append(record)
        elif entry and "file" not in entry:
            others.append(entry)
        else:
            break
    return records, others


def _parse(line: bytes) -> Mapping[str, Any]:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if is_object(entry) else {}


def _parse_purpose(entry: Mapping[str, Any]) -> Purpose | None:
    plan, source = entry.get("plan"), entry.get("input")
    if not isinstance(plan, str) or not isinstance(source, str):
        return None
    return Purpose(plan, source)


def _parse_record(entry: Mapping[str, Any]) -> Record | None:
    facts = dict(entry)
    file, key = facts.pop("file", None), facts.pop("key", None)
    if type(file) is not int or not isinstance(key, str):
        return None
    return Record(file, key, facts)


class Recorder:
    """Collects complete work, and records it in the journal once it is on the disk.

    A thread writes the journal while further work is done. The journal begins `BEGIN_AFTER` seconds
    after the run, or immediately if the run continues another. If `identify` is None, there is no
    journal, since another run could not recognize an input in memory. `records` has all records by
    file and key, including those that are not on the disk yet.
    """

    def __init__(
        self,
        begin: Callable[[Purpose, Iterable[Record]], Journal | ObjectJournal],
        identify: Callable[[], Purpose] | None,
    ) -> None:
        self.records: dict[tuple[int, str], Record] = {}
        self._begin_journal = begin
        self._identify = identify
        self._files: Sequence[Writer] = ()
        self._journal: Journal | ObjectJournal | None = None
        # Records whose bytes are not durable yet, with the marks of their files.
        self._waiting: list[tuple[Record, frozenset[int]]] = []
        self._kept: list[Record] = []
        self._failure: BaseException | None = None
        self._begins = time.monotonic() + BEGIN_AFTER
        self._complete: SimpleQueue[Sequence[tuple[Record, frozenset[int]]] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="weightctl", daemon=True)

    def keep(self, records: Mapping[tuple[int, str], Record]) -> Mapping[tuple[int, str], Record]:
        """Continue with the records of a stopped run, by file and key; return them."""
        self.records.update(records)
        self._kept = list(self.records.values())
        if self._kept:
            self._begins = 0.0
        return self.records

    def begin(self, files: Sequence[Writer]) -> Self:
        """Set the files that are written, and return the recorder for a `with` statement."""
        self._files = files
        return self

    def __enter__(self) -> Self:
        try:
            # If no thread can start, the work is still done, but not recorded.
            with suppress(RuntimeError, MemoryError), defer_signals():
                self._thread.start()
        except BaseException:  # a Ctrl-C that was deferred
            self._end()
            raise
        return self

    def _end(self) -> None:
        with defer_signals():
            self._complete.put(None)
            if self._thread.is_alive():
                self._thread.join()
            if self._journal is not None:
                self._journal.close()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Wait until all added work is recorded; raise the error that prevents it, if any."""
        self._end()
        if self._failure is not None and error is None:
            raise self._failure

    @property
    def has_journal(self) -> bool:
        """Whether there is a journal, so that the same command can continue the run."""
        return bool(self._kept) or self._journal is not None

    def add(self, records: Sequence[Record]) -> None:
        """Add work, to be recorded once it is on the disk; raises the error of an earlier call."""
        if self._failure is not None:
            raise self._failure
        self.records.update(((record.file, record.key), record) for record in records)
        self._complete.put([(record, self._files[record.file].mark()) for record in records])

    def _run(self) -> None:
        try:
            if self._kept and self._identify is not None:
                self._journal = self._begin_journal(self._identify(), self._kept)
            while self._record():
                pass
        except BaseException as error:  # noqa: BLE001
            self._failure = error

    def _record(self) -> bool:
        """Record the work of one interval; return whether more may follow."""
        batch = self._waiting
        wait, goes_on = _SECONDS, True
        end = time.monotonic() + wait
        while goes_on and wait > 0:
            try:
                records = self._complete.get(timeout=wait)
            except Empty:
                break
            if records is None:
                goes_on = False
            else:
                batch += records
            wait = end - time.monotonic()
        if batch and self._identify is not None:
            # From the start, since a disk that always has work is done earlier.
            for file in sorted({record.file for record, _ in batch}):
                self._files[file].sync()
            if time.monotonic() < self._begins:
                return goes_on
            if self._journal is None:
                self._journal = self._begin_journal(self._identify(), ())
            durable = [self._files[record.file].is_durable(mark) for record, mark in batch]
            self._journal.add([record for record, _ in compress(batch, durable)])
            self._waiting = [each for each, done in zip(batch, durable, strict=True) if not done]
        return goes_on


# The line that records that a run has begun to publish.
PUBLISHING = b'{"publishing": true}'
# Records are written at this interval in seconds. Those of workers, whose tasks are long, are
# written immediately.
_FLUSH_AFTER = 3.0


class ObjectJournal:
    """A journal that consists of several objects; each object adds lines.

    If `is_immediate` is set, records are written when they are added.
    """

    def __init__(self, uploads: Uploads, prefix: str, objects: Sequence[str]) -> None:
        self._uploads = uploads
        self._prefix = prefix
        self._objects = list(objects)
        self._lines: list[str] = []
        self._begun = bool(objects)
        self._lock = RLock()
        self.is_immediate = False
        self._flushed = time.monotonic()

    def add_lines(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Add lines other than records, such as the ids of uploads, without writing them yet."""
        with self._lock:
            self._lines += map(format_line, entries)

    def begin(self, purpose: Purpose) -> None:
        """Write the first object, unless an earlier run has written it."""
        with self._lock:
            if not self._begun:
                self._begun = True
                self._lines.insert(0, format_line(purpose._asdict()))
            self.flush()

    def begin_publishing(self, purpose: Purpose) -> None:
        """Record that the run begins to publish, in an object that is a valid journal by itself.

        This object is removed last, so that a run which is stopped in the meantime is detected.
        """
        self.flush()
        self._begun = True
        self._lines = [format_line(purpose._asdict()), format_line(json.loads(PUBLISHING))]
        self.flush()

    def add(self, records: Iterable[Record]) -> None:
        """Add records, and write them at intervals; raises `OutputError` if that fails."""
        with self._lock:
            self._lines += map(format_record, records)
        if self.is_immediate or time.monotonic() - self._flushed > _FLUSH_AFTER:
            self.flush()

    def flush(self) -> None:
        """Write all added lines; raises `OutputError` if that fails."""
        with self._lock:
            if self._begun and self._lines:
                number = int(self._objects[-1].removeprefix(self._prefix)) if self._objects else 0
                path = f"{self._prefix}{number + 1:08d}"
                self._uploads.put(path, "".join(self._lines).encode("ascii"), force=True)
                self._objects.append(path)
                self._lines = []
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Write all added lines, and ignore errors of the store."""
        with suppress(OutputError):
            self.flush()

    def remove(self) -> None:
        """Remove all objects, in an order that leaves a valid journal until the end.

        Raises `OutputError` if that fails.
        """
        # The first object and the one of `begin_publishing` have the purpose of the run.
        self._uploads.delete([*self._objects[1:-1], *self._objects[:1], *self._objects[-1:]])
        self._objects, self._begun = [], False
