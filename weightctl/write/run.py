"""An output while it is written: planned, then partial, then committed.

These are the states of an output, and what changes them:

| state | becomes | by | what exists | after an error |
|---|---|---|---|---|
| planned | partial | `open_files` | an `Outcome`: the names and sizes of files | nothing changes |
| partial | partial | `begin_journal` | temporary files, or uploads | `discard` removes them |
| partial, with a journal | committed | `publish` | also records of complete tasks | they stay |
| committed | | | the files under their final names | they stay |

If an output that is partial has a journal, the same command continues it, unless the error would
occur again. `Partial` writes local files, `UploadRun` objects of a store, and `CommitRun` a commit
of a repository, which has no journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from weightctl.formats.huggingface import open_companion

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weightctl.storage.base import Writer
    from weightctl.write.executors.destinations import Delivered, Place
    from weightctl.write.journal import Journal, ObjectJournal, Purpose, Record


class OutputRun:
    """The files of an output that are not complete, within a `with` block.

    `kept` are the records of a stopped run. `lost` is the reason if there was a stopped run that
    cannot be continued. `is_resumable` is set if the run can be continued, and `is_committed` when
    the output is complete. `pull_request` is the URL of the opened pull request, if any.
    """

    kept: tuple[Record, ...] = ()
    lost = ""
    pull_request = ""
    is_resumable = False
    is_committed = False

    @property
    def can_continue(self) -> bool:
        """Whether the files stay after an error, so that the same command continues the run."""
        return self.is_resumable

    def open_files(self) -> Sequence[Writer]:
        """Open all files, and write their headers; raises `OutputError` if that fails."""
        raise NotImplementedError

    def begin_journal(self, purpose: Purpose, records: Iterable[Record]) -> Journal | ObjectJournal:
        """Begin the journal, with the records of a stopped run.

        Raises `OutputError` if it cannot be written.
        """
        raise NotImplementedError

    def place(self) -> Place:
        """Return the place that workers write to."""
        raise NotImplementedError

    def accept(self, delivered: Delivered) -> None:
        """Add what a worker has delivered; the caller adds its records afterwards."""

    def put(self, name: str, content: bytes) -> None:
        """Write or replace a small file of the output; raises `OutputError` if that fails."""
        raise NotImplementedError

    def copy(self, name: str, path: str) -> None:
        """Copy a small file of the input into the output.

        Raises `FormatError` if it cannot be read, and `OutputError` if it cannot be written.
        """
        source = open_companion(path)
        self.put(name, source.read(0, source.size))
        source.refuse_change()

    def publish(self, *, force: bool) -> None:
        """Make the complete output visible, and remove what it replaces.

        Raises `OutputError` if that fails. Then either nothing has changed, or the same command
        continues.
        """
        raise NotImplementedError

    def discard(self) -> None:
        """Remove everything that is not complete."""
        raise NotImplementedError

    def explain(self, error: BaseException) -> None:
        """Add to an error what it has left."""

    def close(self) -> None:
        """Close the files, and release locks and threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is not None:
                if not self.can_continue:
                    self.discard()
                self.explain(error)
        finally:
            self.close()
