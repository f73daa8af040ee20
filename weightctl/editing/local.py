"""Carries out an edit of local files, which all change at the same moment."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from weightctl.editing.copying import NewFile
from weightctl.errors import OutputError
from weightctl.storage.completing_edits import complete_edit, record_edit
from weightctl.storage.pending_edits import MARKER, EditedFile, digest_of, edit_path
from weightctl.system.interrupts import defer_signals
from weightctl.system.temporary import JOURNAL, token_of
from weightctl.write.claims import (
    entrance,
    find_leftovers,
    lock_path,
    refuse_other_runs,
    remove_path,
)
from weightctl.write.replacing import rename, sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightctl.editing.planning import EditPlan, FileEdit

_SIZE = len(MARKER)
# The blocks in which headers are compared.
_STEP = 512


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
