"""Edits a checkpoint: in place where the header has room, and else as new files."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from weightctl.editing.changes import Changes
from weightctl.editing.headers import BLOCK
from weightctl.editing.planning import plan_edit
from weightctl.errors import OutputError
from weightctl.formats.open.opening import open_weights
from weightctl.plan.metadata import Setting, list_settings
from weightctl.storage.base import cannot_write
from weightctl.storage.local import FileReader, FileWriter
from weightctl.storage.location import is_remote, parse_location
from weightctl.storage.pending_edits import (
    MARKER,
    EditedFile,
    complete_edit,
    digest_of,
    edit_path,
    record_edit,
)
from weightctl.system.files import change_mode, clone_range_at, lock_file, reserve, sync_directory
from weightctl.system.processes import defer_signals
from weightctl.system.temporary import JOURNAL, temporary_name, token_of
from weightctl.text.sizes import parse_size
from weightctl.weights.tree import header_of
from weightctl.write.locks import (
    entrance,
    find_leftovers,
    lock_path,
    refuse_other_runs,
    remove_path,
)
from weightctl.write.replacing import rename

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from weightctl.editing.changes import ChangedModel
    from weightctl.editing.planning import EditPlan, FileEdit, Moved
    from weightctl.plan.rename import RenamingsLike

_CHUNK = 8 << 20
_SIZE = len(MARKER)
# The blocks in which headers are compared.
_STEP = 512


class Way(Enum):
    """How a file is edited."""

    UNCHANGED = "unchanged"
    HEADER = "header"
    REWRITE = "rewrite"
    UPLOAD = "upload"


class EditedPart(NamedTuple):
    """A file of an edit: how it is edited, and its sizes before and after."""

    path: str
    way: Way
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True, repr=False)
class Edited:
    """An edit that is planned or done.

    `written_bytes` are the bytes that were written, with the journal, or sent to a store.
    `shared_bytes` are the bytes of new files that share blocks with the old files, or that a store
    has copied. Both are None until the edit is done.
    """

    plan: EditPlan
    written_bytes: int | None = None
    shared_bytes: int | None = None

    def __repr__(self) -> str:
        state = "planned" if self.written_bytes is None else "done"
        return f"<Edited {self.plan.path}: {len(self.plan.changed_files)} files change, {state}>"

    @property
    def changes(self) -> ChangedModel:
        """The metadata that changes, and the new names of tensors."""
        return self.plan.model

    @property
    def parts(self) -> list[EditedPart]:
        """The files with tensors, and how each is edited."""
        return [
            EditedPart(
                each.path,
                _way_of(each),
                each.source.size,
                each.source.size if each.layout is None else each.size,
            )
            for each in self.plan.files
        ]

    @property
    def moved_bytes(self) -> int:
        """The bytes of data in files that are written again."""
        return sum(
            moved.nbytes
            for file in self.plan.changed_files
            if not file.in_place
            for moved in file.moved
        )

    def save(self, progress: Callable[[int], object] | None = None) -> Edited:
        """Carry out the edit; raises `OutputError` if a file cannot be written.

        After an error, or if the run is killed, the files are the old or the new ones. `progress`
        is called with the number of bytes of each step.
        """
        if self.written_bytes is not None:
            return self
        if is_remote(header_of(self.plan.weights).files[0]):
            from weightctl.editing.remote import upload_files

            return Edited(self.plan, *upload_files(self.plan, progress))
        return Edited(self.plan, *write_files(self.plan, progress))


def _way_of(file: FileEdit) -> Way:
    if file.layout is None:
        return Way.UNCHANGED
    if is_remote(file.path):
        return Way.UPLOAD
    return Way.HEADER if file.in_place else Way.REWRITE


def edit(
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, object] | Sequence[Setting] = (),
    unset: str | Sequence[str] = (),
    rename: RenamingsLike = (),
    drop: str | Sequence[str] = (),
    header_room: int | str = 0,
    source_format: str | None = None,
    dry_run: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Edited:
    """Edit the files of a checkpoint, as `weightctl edit` does.

    `metadata` sets keys, and `unset` removes keys that match patterns. `rename` has rules for names
    of tensors: `"OLD=NEW"`, with a name or a regular expression, a mapping, or the path of a TOML
    file. `drop` are names or patterns of tensors to remove. If a header has no room for the
    changes, a new file is written, whose header has `header_room` left.

    An edit that an earlier run has begun is completed first. Returns the edit; if `dry_run` is set,
    nothing is written, and its `save` carries it out. Raises `ConversionError`, `FormatError` and
    `OutputError`, which are `WeightctlError`s with a hint; after an error, the files are unchanged.
    """
    where = parse_location(os.fspath(path)).name
    room = parse_size(header_room) if isinstance(header_room, str) else header_room
    changes = Changes(
        list_settings(metadata), _as_list(unset), _list_renamings(rename), _as_list(drop)
    )  # fmt: skip
    if is_remote(where):
        from weightctl.editing.remote import refuse_store

        refuse_store(where)
    elif not dry_run:
        finish_edit(where)
    planned = Edited(plan_edit(where, open_weights(where, source_format), changes, room=room))
    return planned if dry_run else planned.save(progress)


def finish_edit(path: str) -> bool:
    """Complete an edit that an earlier run has begun; return whether there was one."""
    if is_remote(path):
        return False
    real = os.path.realpath(path)
    directory = real if os.path.isdir(real) else os.path.dirname(real)
    if not os.path.isdir(directory):
        return False
    with entrance(directory):
        is_pending = os.path.lexists(edit_path(directory))
        complete_edit(directory)
    return is_pending


def _as_list(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given


def _list_renamings(given: RenamingsLike) -> Sequence[RenamingsLike]:
    if not given:
        return []
    return [given] if isinstance(given, str | os.PathLike | Mapping) else given


# Carries out an edit of local files, which all change at the same moment.


def write_files(plan: EditPlan, progress: Callable[[int], object] | None) -> tuple[int, int]:
    """Carry out an edit; return the bytes that were written, and those that share blocks.

    Raises `OutputError` if a file cannot be written, or if another run is writing it, and
    `FormatError` if a file has changed since the edit was planned.
    """
    changed = plan.changed_files
    paths = _list_paths(plan)
    if not paths:
        return 0, 0
    directory = os.path.dirname(paths[0])
    new: dict[str, NewFile] = {}
    try:
        with entrance(directory):
            for path in paths:
                refuse_other_runs(path)
                _clear(path)
            for path, file in zip(paths, changed, strict=False):
                if not file.in_place:
                    new[path] = NewFile(path)
        _fill(new, dict(zip(paths, changed, strict=False)), progress or _ignore)
        index = _write_index(plan, paths[-1], new)
        with defer_signals(), entrance(directory):
            for file in plan.files:
                file.source.refuse_change()
            entries = [
                _describe(path, file, new.get(path))
                for path, file in zip(paths, changed, strict=False)
            ]
            written = _commit(directory, [*entries, *index])
    except OutputError as error:
        if isinstance(error.__cause__, OSError) and not os.path.lexists(edit_path(directory)):
            error.add_hint("the target is unchanged")
        raise
    finally:
        with defer_signals():
            for each in new.values():
                # The record of an edit that is not complete refers to the new files.
                if os.path.lexists(edit_path(directory)):
                    each.close()
                else:
                    each.discard()
    written += sum(each.written for each in new.values())
    return written, sum(each.shared for each in new.values())


def _list_paths(plan: EditPlan) -> list[str]:
    """Return the real paths of the files that change; that of the index comes last."""
    paths = [os.path.realpath(each.path) for each in plan.changed_files]
    paths += [os.path.realpath(plan.index[0])] if plan.index else []
    if len({*map(os.path.dirname, paths)}) > 1:
        raise OutputError(
            f"the index and the files of {plan.path} are in different directories",
            hint="`weightctl convert` writes an edited copy",
        )
    return paths


def _fill(
    new: Mapping[str, NewFile], edits: Mapping[str, FileEdit], progress: Callable[[int], object]
) -> None:
    for path, file in new.items():
        file.fill(edits[path], progress)


def _ignore(_: int) -> None:
    pass


def _clear(path: str) -> None:
    """Remove the new files of killed edits; files of other runs, which have journals, are kept."""
    found = list(find_leftovers(path))
    kept = {token_of(each) for each in found if JOURNAL in each}
    for each in found:
        if token_of(each) not in kept:
            with suppress(OSError):
                os.close(lock_path(each))
                remove_path(each)


def _write_index(plan: EditPlan, path: str, new: dict[str, NewFile]) -> list[EditedFile]:
    if plan.index is None:
        return []
    file = new[path] = NewFile(path)
    file.put(plan.index[1])
    return [_describe_new(path, file)]


def _describe_new(path: str, new: NewFile) -> EditedFile:
    size = os.path.getsize(path)
    return EditedFile(
        os.path.basename(path), size, size, temporary=os.path.basename(new.temporary)
    )  # fmt: skip


def _describe(path: str, file: FileEdit, new: NewFile | None) -> EditedFile:
    """Return what changes in a file: it is replaced, or parts of its header are."""
    if new is not None:
        return _describe_new(path, new)
    header = b"" if file.layout is None else file.layout.header
    made = header.ljust(file.start, b"\0")
    old = file.source.read(0, file.start)
    ranges = _list_differences(old, made)
    return EditedFile(
        os.path.basename(path),
        file.source.size,
        file.size,
        digest_of([old[:_SIZE], *(old[first:last] for first, last in ranges)]),
        made[:_SIZE],
        tuple((first, made[first:last]) for first, last in ranges),
    )


def _list_differences(old: bytes, new: bytes) -> list[tuple[int, int]]:
    """Return the ranges, in blocks, in which headers of the same length differ."""
    ranges: list[tuple[int, int]] = []
    for start in range(0, len(new), _STEP):
        first, last = max(start, _SIZE), min(start + _STEP, len(new))
        if old[first:last] == new[first:last]:
            continue
        if ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
    return ranges


def _commit(directory: str, files: list[EditedFile]) -> int:
    """Make the edit valid, and carry it out; return the bytes that were written."""
    if len(files) == 1 and files[0].temporary:
        file = files[0]
        rename(os.path.join(directory, file.temporary), os.path.join(directory, file.name))
        sync_directory(directory)
        return 0
    return record_edit(directory, files) + complete_edit(directory)


class NewFile:
    """A new file under a temporary name, which is locked until it is closed.

    `shared` and `written` are the bytes of data that share blocks with the old file, and those that
    were written. Raises `OutputError` if it cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.temporary = temporary_name(path)
        self.shared = 0
        self.written = 0
        try:
            self._file = FileWriter(self.temporary, 0)
        except OutputError:
            with suppress(OSError):
                os.unlink(self.temporary)
            raise
        try:
            lock_file(self._file.descriptor)
            change_mode(self._file.descriptor, stat.S_IMODE(os.stat(path).st_mode))
        except OSError as error:
            self.discard()
            raise cannot_write(path, error) from error

    def fill(self, edit: FileEdit, progress: Callable[[int], object]) -> None:
        """Write the header and the data; `progress` is called with the bytes of each step."""
        layout = edit.layout
        if layout is None:
            return
        can_share = self._share_first(edit)
        try:
            if not can_share:
                reserve(self._file.descriptor, layout.nbytes)
            os.ftruncate(self._file.descriptor, layout.nbytes)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._file.write(0, layout.header)
        self.written += len(layout.header)
        for moved in edit.moved:
            for old, new, nbytes, is_shared in _cut(moved, can_share=can_share):
                if is_shared and self._share(edit, old, new, nbytes):
                    self.shared += nbytes
                else:
                    self._file.copy(new, edit.source.range(old, old + nbytes))
                    self.written += nbytes
                progress(nbytes)
        self._file.sync()

    def put(self, content: bytes) -> None:
        """Write the content of a small file."""
        self._file.write(0, content)
        self._file.sync()
        self.written = len(content)

    def _share_first(self, edit: FileEdit) -> bool:
        """Whether blocks can be shared, which is tried with the first block."""
        return any(
            self._share(edit, old, new, BLOCK)
            for moved in edit.moved
            for old, new, nbytes, is_shared in _cut(moved, can_share=True)
            if is_shared and nbytes >= BLOCK
        )

    def _share(self, edit: FileEdit, old: int, new: int, nbytes: int) -> bool:
        source = edit.source
        if not isinstance(source, FileReader):
            return False
        return clone_range_at(source.fileno(), self._file.descriptor, old, new, nbytes)

    def discard(self) -> None:
        with suppress(OSError):
            os.unlink(self.temporary)
        self.close()

    def close(self) -> None:
        """Close the file, and release its lock."""
        self._file.close()


def _cut(moved: Moved, *, can_share: bool) -> Iterator[tuple[int, int, int, bool]]:
    """Yield pieces of a range: offsets in the old and new file, length, whether to share blocks."""
    position, end = moved.old, moved.old + moved.nbytes
    shift = moved.new - moved.old
    first, last = -(-position // BLOCK) * BLOCK, end // BLOCK * BLOCK
    if can_share and shift % BLOCK == 0 and first < last:
        if position < first:
            yield position, position + shift, first - position, False
        yield first, first + shift, last - first, True
        position = last
    while position < end:
        nbytes = min(_CHUNK, end - position)
        yield position, position + shift, nbytes, False
        position += nbytes
