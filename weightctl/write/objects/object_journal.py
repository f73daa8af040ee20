"""The journal of a run with output in an object store, where objects cannot be appended to."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from threading import RLock
from typing import TYPE_CHECKING, Any

from weightctl.errors import OutputError
from weightctl.write.journal import format_line, format_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from weightctl.storage.base import Uploads
    from weightctl.write.journal import Purpose, Record

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
