"""What has been written reaches the disk while more is written, and is recorded then."""

from __future__ import annotations

import time
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Self

from weightctl.system.interrupts import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.write.shards.journal import Journal, Record
    from weightctl.write.shards.writable import Writable

__all__ = ["Syncing"]

# Waiting for a disk takes long, so it is done for many tensors at a time; but what a crash undoes
# is not to be more than this.
_SECONDS = 0.03


class Syncing:
    """A thread that records tensors once they are on the disk; with it ends what is to be recorded.

    What is added after an error in it, and its end, raise that error.
    """

    def __init__(self, files: Sequence[Writable], journal: Journal) -> None:
        self._files = files
        self._journal = journal
        self._failure: BaseException | None = None
        self._written: SimpleQueue[list[Record] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="weightctl", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Wait until all is recorded that was added, or cannot be."""
        with uninterrupted():
            self._written.put(None)
            self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def add(self, records: list[Record]) -> None:
        """Have what was written recorded when it is on the disk."""
        if self._failure is not None:
            raise self._failure
        self._written.put(records)

    def _run(self) -> None:
        try:
            while self._record():
                pass
        except BaseException as error:  # noqa: BLE001
            self._failure = error

    def _record(self) -> bool:
        """Record a batch; whether there may be more."""
        batch: list[Record] = []
        end, timeout = time.monotonic() + _SECONDS, _SECONDS
        goes_on = True
        while goes_on and timeout > 0:
            try:
                records = self._written.get(timeout=timeout)
            except Empty:
                break
            if records is None:
                goes_on = False
            else:
                batch += records
            timeout = end - time.monotonic()
        if batch:
            for rank in sorted({record.rank for record in batch}):
                self._files[rank].sync()
            self._journal.add(batch)
        return goes_on
