"""Writes outputs to temporary files, which get their final names when the output is complete.

If a stopped run has left files, a run with the same plan and input continues them. Other files of
stopped runs are removed.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import OutputError
from weightctl.formats.huggingface import open_companion
from weightctl.formats.replacement_record import switch_path
from weightctl.storage.base import cannot_write
from weightctl.storage.local import FileWriter
from weightctl.storage.pending_edits import complete_edit
from weightctl.system.files import change_mode, lock_file, sync, sync_directory, write_durably
from weightctl.system.processes import defer_signals
from weightctl.system.temporary import (
    JOURNAL,
    TEMPORARY,
    asides_of,
    new_token,
    temporary_name,
    token_of,
)
from weightctl.write.journal import Journal, read_journal
from weightctl.write.locks import (
    clear_leftovers,
    entrance,
    find_leftovers,
    is_same_directory,
    lock_path,
    refuse_other_runs,
    remove_path,
)
from weightctl.write.replacing import complete, exchange, name_files, remove, rename
from weightctl.write.run import OutputRun

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from weightctl.write.executors.coordination import Markers
    from weightctl.write.executors.destinations import TemporaryFiles
    from weightctl.write.journal import Purpose, Record
    from weightctl.write.outcome import Outcome


class Partial(OutputRun):
    """The temporary files of a run, which get their final names when all of them are complete.

    If `is_shared` is set, processes share the run, and manage its markers themselves.
    """

    def __init__(self, outcome: Outcome, left: ResumableFiles, *, is_shared: bool = False) -> None:
        self._outcome = outcome
        self._markers = None if is_shared else left.markers
        self._token = left.token
        self._lock = -1
        # The temporary directory, whatever its name is.
        self._identity: os.stat_result | None = None
        # Files of an earlier run are kept if this run fails before it has started.
        self.is_resumable = bool(left.records)
        self._intact: set[int] = set()
        self.kept: tuple[Record, ...] = left.records
        self.lost = left.lost
        self.path = temporary_name(outcome.path, left.token)
        self.journal = self.path + JOURNAL
        self._unused_journal = f"{self.journal}.new"
        # The record of the replacement of a set of files; a directory has none.
        name = "" if outcome.is_directory else outcome.names[0]
        self._record = switch_path(outcome.path_of(name))
        self.files: list[FileWriter] = []

    @property
    def can_continue(self) -> bool:
        """Whether the files stay after an error, so that the same command continues the run."""
        return self.is_resumable and not self.is_committed

    def path_of(self, name: str) -> str:
        """Return the temporary path of a file of the output."""
        if self._outcome.is_directory:
            return os.path.join(self.path, name)
        return temporary_name(self._outcome.path_of(name), self._token)

    def begin(self) -> None:
        """Create the directory or the first file, and lock it.

        Records of files whose size has changed are ignored. Raises `OutputError` if the directory
        or file cannot be created or locked.
        """
        self.check_files()
        for number, name in enumerate(self._outcome.parts):
            if number not in self._intact:
                with suppress(OSError):
                    os.unlink(self.path_of(name))
        with defer_signals():
            if self._outcome.is_directory:
                self._begin_directory()
            else:
                self._open(next(iter(self._outcome.parts)))

    def check_files(self) -> None:
        """Keep only the records of files that still have their original size."""
        self._intact = {
            number
            for number, (name, layout) in enumerate(self._outcome.parts.items())
            if _has_size(self.path_of(name), layout.nbytes)
        }
        self.kept = tuple(record for record in self.kept if record.file in self._intact)

    def _begin_directory(self) -> None:
        try:
            try:
                with suppress(FileExistsError):
                    os.mkdir(self.path)
                self._lock = lock_path(self.path)
                self._identity = os.stat(self.path)
            except OSError:
                with suppress(OSError):  # a directory with files is not removed
                    os.rmdir(self.path)
                raise
            if os.path.isdir(self._outcome.path):
                os.chmod(self.path, stat.S_IMODE(os.stat(self._outcome.path).st_mode))
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def open_files(self) -> list[FileWriter]:
        """Open all files, and write their headers; remove other temporary files.

        Raises `OutputError` if a file cannot be opened or written.
        """
        parts = self._outcome.parts
        if self._outcome.is_directory:
            self._clear({name for number, name in enumerate(parts) if number in self._intact})
        for name in list(parts)[len(self.files) :]:
            with defer_signals():
                self._open(name)
        for file, layout in zip(self.files, parts.values(), strict=True):
            file.write(0, layout.header)
        return self.files

    def _open(self, name: str) -> None:
        path = self.path_of(name)
        if self._outcome.is_directory:
            _make_directory(os.path.dirname(path))
        file = FileWriter(path, self._outcome.parts[name].nbytes)
        self.files.append(file)
        if self._outcome.is_directory:
            return
        try:
            lock_file(file.descriptor)
            _copy_mode(self._outcome.path_of(name), file.descriptor)
        except OSError as error:
            raise cannot_write(path, error) from error

    def _clear(self, stays: Iterable[str]) -> None:
        """Remove the files of a stopped run from the directory, except the files `stays`."""
        wanted = {os.path.normpath(os.path.join(self.path, name)) for name in stays}
        for directory, _, names in os.walk(self.path):
            for name in names:
                path = os.path.join(directory, name)
                if path not in wanted:
                    remove_path(path)

    def place(self) -> TemporaryFiles:
        from weightctl.write.executors.destinations import TemporaryFiles

        return TemporaryFiles(tuple(file.path for file in self.files))

    def begin_journal(self, purpose: Purpose, records: Iterable[Record]) -> Journal:
        """Begin the journal of the run; raises `OutputError` if it cannot be written."""
        journal = Journal(self.journal, purpose, records)
        if self._markers is not None:
            self._markers.remove()  # the journal has their records
        return journal

    def copy(self, name: str, path: str) -> None:
        source = open_companion(path)
        _make_directory(os.path.dirname(self.path_of(name)))
        file = FileWriter(self.path_of(name), source.size)
        try:
            file.copy(0, source.range())
            source.refuse_change()
            file.sync()
        finally:
            file.close()

    def put(self, name: str, content: bytes) -> None:
        path = self.path_of(name)
        try:
            write_durably(path, content, "wb")
        except OSError as error:
            raise cannot_write(path, error) from error

    def publish(self, *, force: bool) -> None:
        """Give the complete files their final names, and remove the files that they replace.

        Raises `OutputError` if that fails. Then either nothing has changed, or the record of the
        replacement lets the next run complete it.
        """
        for file in self.files:
            file.sync()
        outcome = self._outcome
        if outcome.is_directory:
            for directory in sorted({os.path.dirname(file.path) for file in self.files}):
                sync_directory(directory)
            sync_directory(self.path)
        with defer_signals():
            try:
                if outcome.is_directory:
                    self._name_directory(force=force)
                else:
                    named = [(self.path_of(name), outcome.path_of(name)) for name in outcome.names]
                    name_files(named, force=force, old=outcome.list_replaced())
            finally:
                self.is_committed = self._is_in_place()
            # The first path is the old directory. Another run may remove it at the same time.
            remove([self.path, self.journal, self._unused_journal])
        sync_directory(os.path.dirname(outcome.path))

    def _is_in_place(self) -> bool:
        """Whether all files have their final names."""
        outcome = self._outcome
        if outcome.is_directory:
            return is_same_directory(self._identity, outcome.path)
        paths = map(outcome.path_of, outcome.parts)
        return not os.path.lexists(self._record) and all(
            os.path.exists(path) and os.path.samestat(os.fstat(file.descriptor), os.stat(path))
            for file, path in zip(self.files, paths, strict=True)
        )

    def explain(self, error: BaseException) -> None:
        if isinstance(error, OutputError) and isinstance(error.__cause__, OSError):
            error.add_hint(self._describe_state())

    def _describe_state(self) -> str:
        """Return the state of the target after an error, and the names of the files that stay."""
        outcome = self._outcome
        if os.path.lexists(self._record):
            return (
                "the new files are complete, and weightctl reads them instead of the old ones as "
                f"{self._record} says; the same command with --force (force=True in Python) "
                "completes the replacement"
            )
        left = sorted({*find_leftovers(outcome.path, outcome.pattern), *asides_of(outcome.path)})
        state = "the output is complete" if self.is_committed else "the target is unchanged"
        if left:
            verb = "temporary files stay" if self.can_continue else "remove temporary files"
            state += f"; {verb}: {', '.join(left)}"
        return state

    def _name_directory(self, *, force: bool) -> None:
        path = self._outcome.path
        if not os.path.isdir(path) or not os.listdir(path):
            rename(self.path, path)
            return
        self._outcome.refuse_contents(path, force=force)
        # With the journal, another run would take files of the old directory for its own.
        has_journal = os.path.lexists(self.journal)
        if has_journal:
            rename(self.journal, self._unused_journal)
        try:
            exchange(self.path, path)
            try:
                # A file may have been created in the old directory in the meantime.
                self._outcome.refuse_contents(self.path, force=force)
            except BaseException:
                exchange(self.path, path)
                raise
        except BaseException:
            if has_journal and not self._is_in_place():
                rename(self._unused_journal, self.journal)
            raise

    def discard(self) -> None:
        """Remove all temporary files, unless the record of a replacement lists them."""
        with defer_signals():
            if self.is_committed:
                return
            if self._outcome.is_directory:
                if is_same_directory(self._identity, self.path):
                    shutil.rmtree(self.path, ignore_errors=True)
            elif not os.path.lexists(self._record):
                for name in self._outcome.names:
                    with suppress(OSError):
                        os.unlink(self.path_of(name))
            for path in (self.journal, self._unused_journal):
                with suppress(OSError):
                    os.unlink(path)
            if self._markers is not None:
                self._markers.remove()

    def close(self) -> None:
        with defer_signals():
            for file in self.files:
                file.close()
            if self._lock >= 0:
                os.close(self._lock)
            self.files, self._lock = [], -1


@contextmanager
def hold_output(
    outcome: Outcome,
    identify: Callable[[], Purpose] | None,
    *,
    force: bool,
    is_shared: bool = False,
) -> Generator[Partial, None, None]:
    """Lock an output, so that other runs do not write to it within this context.

    The files of killed runs are removed, completed, or kept to be continued. `is_shared` is set if
    other processes share this run. Raises `OutputError` if another run is writing the output, or if
    the output cannot or must not be written.
    """
    path, names = outcome.path, outcome.pattern
    shared = _ranks_token(identify) if is_shared else ""
    with ExitStack() as held:
        with entrance(os.path.dirname(path)):
            refuse_other_runs(path, names, shared)
            complete(path, force=force)
            _complete_edit(outcome)
            left = find_resumable(path, identify)
            kept = {left.token} if left.records else set[str]()
            if identify is not None and (is_shared or left.records):
                kept.add(_ranks_token(identify))
            clear_leftovers(path, names, kept)
            outcome.refuse(force=force)
            partial = held.enter_context(Partial(outcome, left, is_shared=is_shared))
            partial.begin()
        yield partial


def _complete_edit(outcome: Outcome) -> None:
    """Complete an edit, by a killed run, of files that this run replaces."""
    path = outcome.path
    if os.path.isdir(path):
        complete_edit(path)
    elif not outcome.is_directory:
        complete_edit(os.path.dirname(path), outcome.names)


def find_kept(outcome: Outcome, identify: Callable[[], Purpose]) -> tuple[Record, ...]:
    """Return the records of a stopped run that a run with this plan and input would continue.

    There are none if another run is currently writing the output.
    """
    try:
        refuse_other_runs(outcome.path, outcome.pattern)
    except OutputError:
        return ()
    partial = Partial(outcome, find_resumable(outcome.path, identify))
    partial.check_files()
    return partial.kept


def _ranks_token(identify: Callable[[], Purpose] | None) -> str:
    """Return the token of the run that several processes share; empty if it has no identity."""
    from weightctl.write.executors.coordination import ranks_token  # most runs are not shared

    return "" if identify is None else ranks_token(identify())


def find_shared_files(
    outcome: Outcome, identify: Callable[[], Purpose]
) -> tuple[TemporaryFiles, tuple[Record, ...]] | None:
    """Return the files and the records of a shared run's journal; None if there is none."""
    left = find_resumable(outcome.path, identify, has_markers=False)
    if left.markers is None:
        return None
    from weightctl.write.executors.destinations import TemporaryFiles

    partial = Partial(outcome, left)
    return TemporaryFiles(tuple(map(partial.path_of, outcome.parts))), left.records


def _has_size(path: str, nbytes: int) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == nbytes


def _make_directory(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def _copy_mode(path: str, descriptor: int) -> None:
    if os.path.exists(path):
        change_mode(descriptor, stat.S_IMODE(os.stat(path).st_mode))


def write_files(contents: Mapping[str, bytes | Iterable[bytes]], *, force: bool) -> None:
    """Write small files, or files in parts, either all of them completely or none.

    The keys of `contents` are real paths. Raises `OutputError` if that fails, or if a file exists
    at a path and `force` is not set.
    """
    named: list[tuple[str, str]] = []
    try:
        for path, content in contents.items():
            temporary = temporary_name(path)
            named.append((temporary, path))
            try:
                with open(temporary, "xb") as file:
                    _copy_mode(path, file.fileno())
                    file.writelines((content,) if isinstance(content, bytes) else content)
                    file.flush()
                    sync(file.fileno())
            except OSError as error:
                raise cannot_write(temporary, error) from error
        with defer_signals():
            name_files(named, force=force)
    finally:
        with defer_signals():
            for temporary, _ in named:
                with suppress(OSError):
                    os.unlink(temporary)
    for directory in {os.path.dirname(path) for path in contents}:
        sync_directory(directory)


# Finds the files that a stopped run has left next to its output.


class ResumableFiles(NamedTuple):
    """The state of a stopped run: the token of its file names, and its records.

    If no run can be continued, the token is new, and `lost` is the reason if there was a run.
    `markers` are those of processes that shared the run.
    """

    token: str
    records: tuple[Record, ...] = ()
    lost: str = ""
    markers: Markers | None = None


def find_resumable(
    path: str, identify: Callable[[], Purpose] | None, *, has_markers: bool = True
) -> ResumableFiles:
    """Return the state of a stopped run with the same plan and input.

    The records are those of the journal and, if `has_markers` is set, those in the markers of
    processes that shared the run.
    """
    lost = ""
    directory, base = os.path.split(path)
    pattern = re.compile(f"{re.escape(base)}{TEMPORARY}")
    with suppress(OSError):
        for name in sorted(filter(pattern.fullmatch, os.listdir(directory))):
            found = read_journal(os.path.join(directory, name)) if name.endswith(JOURNAL) else None
            if found is None:
                continue
            before, records = found
            now = None if identify is None else identify()
            if now is None:
                lost = "the input is in memory, and cannot be compared"
            elif before.input != now.input:
                lost = "the input has changed"
            elif before.plan != now.plan:
                lost = "the plan has changed"
            else:
                from weightctl.write.executors.coordination import markers_of, read_done

                markers = markers_of(path, now)
                if has_markers:
                    records += chain.from_iterable(
                        done.records for done in read_done(markers).values()
                    )
                return ResumableFiles(token_of(name), tuple(records), markers=markers)
    return ResumableFiles(new_token(), lost=lost)
