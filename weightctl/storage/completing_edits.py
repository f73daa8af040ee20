"""Records an edit of local files, and carries it out.

The same function carries out a new edit, and one that a killed run has left.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from weightctl.errors import OutputError
from weightctl.storage.base import cannot_write
from weightctl.storage.own_edits import forget_own_edit, note_own_edit, own_edit_path
from weightctl.storage.pending_edits import (
    MARKER,
    MOST_BYTES,
    PendingEdit,
    digest_of,
    edit_path,
    find_edit,
    format_edit,
    refuse_changed,
)
from weightctl.system.temporary import temporary_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.storage.pending_edits import EditedFile

_CHUNK = 1 << 20


def record_edit(directory: str, files: Sequence[EditedFile]) -> int:
    """Write the record of an edit: from then on, the edited files are valid.

    Returns the number of bytes of the record. Raises `OutputError` if it cannot be written.
    """
    path, content = edit_path(directory), format_edit(files)
    if len(content) > MOST_BYTES:
        raise OutputError(
            f"{path}: the changes of the headers need {len(content):,} bytes, more than weightctl "
            f"writes in place ({MOST_BYTES:,})",
            hint="`weightctl convert` writes an edited copy",
        )
    temporary = temporary_name(os.path.join(directory, files[0].name))
    try:
        note_own_edit(directory, digest_of([content]))
    except OSError as error:
        raise cannot_write(own_edit_path(directory), error) from error
    try:
        with open(temporary, "xb", buffering=0) as file:
            _write(file.fileno(), 0, content)
            os.fsync(file.fileno())
        os.rename(temporary, path)
        _sync(directory)
    except OSError as error:
        # The files did not change yet, so the edit is undone.
        for name in (temporary, path):
            with suppress(OSError):
                os.unlink(name)
        if not os.path.lexists(path):
            forget_own_edit(directory)
        raise cannot_write(path, error) from error
    return len(content)


def complete_edit(directory: str, names: Sequence[str] = ()) -> int:
    """Carry out the edit that is recorded in a directory, if there is one; then remove the record.

    If `names` are given, this is only done if the edit changes one of these files. Returns the
    number of bytes that were written. Raises `OutputError` if a file cannot be written, and
    `FormatError` if the record is invalid, or if a file was changed since it was written.
    """
    edit = find_edit(directory)
    if edit is None or (names and not {*names} & {file.name for file in edit.files}):
        return 0
    edit.refuse_foreign()
    written = 0
    try:
        for file in edit.files:
            written += _replace(edit, file) if file.temporary else _change(edit, file)
        _sync(directory)
        os.unlink(edit.path)
        _sync(directory)
    except OSError as error:
        changed = edit.path_of(edit.files[0].name)
        if os.path.lexists(edit.path):
            raise OutputError(
                f"{changed} cannot be written: {error.strerror}. The edit is recorded but not "
                "complete: weightctl reads the file as edited, and other programs refuse it or "
                "read the old one",
                hint=f"mend the cause, then complete the edit: weightctl edit {changed}",
            ) from error
    forget_own_edit(directory)
    return written


def _replace(edit: PendingEdit, file: EditedFile) -> int:
    with suppress(FileNotFoundError):  # a killed run has already renamed it
        os.rename(edit.path_of(file.temporary), edit.path_of(file.name))
    return 0


def _change(edit: PendingEdit, file: EditedFile) -> int:
    descriptor = os.open(edit.path_of(file.name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)

        def read(offset: int, nbytes: int) -> bytes:
            return os.pread(descriptor, nbytes, offset)

        if refuse_changed(read, os.fstat(descriptor).st_size, edit, file):
            return 0
        # Other programs refuse the file until all its bytes are on the disk.
        _write(descriptor, 0, MARKER)
        os.fsync(descriptor)
        for start, changed in file.patches:
            _write(descriptor, start, changed)
        if file.size < file.old_size:
            os.ftruncate(descriptor, file.size)
        os.fsync(descriptor)
        _write(descriptor, 0, file.first)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return len(MARKER) + sum(len(changed) for _, changed in file.places)


def _write(descriptor: int, offset: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        count = os.pwrite(descriptor, view[:_CHUNK], offset)
        view, offset = view[count:], offset + count


def _sync(directory: str) -> None:
    with suppress(OSError):  # some file systems do not support or need this
        descriptor = os.open(directory or ".", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
