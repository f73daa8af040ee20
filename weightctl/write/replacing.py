"""Gives new files and directories their final names, and replaces existing ones.

A single name changes atomically. Several names change with a record (see
`weightctl.formats.replacement_record`): a run that is killed before the record exists has not
changed anything; after that, the new files are valid.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from weightctl.errors import OutputError
from weightctl.formats import format_by_index
from weightctl.formats.replacement_record import (
    Switch,
    is_same_file,
    read_switch,
    switch_bytes,
    switch_path,
)
from weightctl.storage.base import cannot_write
from weightctl.system.files import explain_open_file, swap_names, sync_directory, write_durably
from weightctl.system.temporary import aside_name, loadable_name, temporary_name, without_temporary
from weightctl.write.locks import remove_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def name_files(files: Sequence[tuple[str, str]], *, force: bool, old: Sequence[str] = ()) -> None:
    """Give complete temporary files their final names; the index, if any, must be the first.

    `files` are pairs of temporary and final paths. If `force` is set, existing files are replaced,
    and the paths `old` are removed. Raises `OutputError` if that fails. Then either nothing has
    changed, or the record refers readers and the next run to the new files.
    """
    paths = [path for _, path in files]
    there = list(filter(os.path.lexists, [*paths, *old]))
    if len(files) == 1 and not old:
        _publish(*files[0], force=force)
        return
    if there and not force:
        raise _cannot_replace(there[0])
    if len({switch_path(path) for path in paths}) != 1:
        # The files are independent, for example reports in several formats.
        for temporary, path in reversed(files):
            _publish(temporary, path, force=force)
        return
    switch = _decide(files, there)
    try:
        _name_all(switch, force=force)
    except BaseException:
        _undo(switch)
        raise
    _forget(switch)


def _decide(files: Sequence[tuple[str, str]], there: Sequence[str]) -> Switch:
    """Write the record of a replacement, after the files that it refers to."""
    new = {os.path.basename(path): os.path.basename(temporary) for temporary, path in files}
    # The index comes first.
    old = sorted(there, key=lambda path: (format_by_index(path) is None, path))
    record = switch_path(files[0][1])
    try:
        _prepare_loadable(files)
        # With the record, the new files are valid.
        _write(record, switch_bytes(new, tuple(map(os.path.basename, old))))
    except BaseException:
        remove(loadable_name(temporary) for temporary, _ in files)
        raise
    sync_directory(os.path.dirname(record))
    return read_switch(record)


def complete(path: str, *, force: bool) -> None:
    """Complete an interrupted replacement at a path, if there is one.

    Raises `OutputError` if its files have changed since then and `force` is not set.
    """
    record = switch_path(path)
    if not os.path.lexists(record):
        return
    switch = read_switch(record)
    missing = [name for name in switch.new if not os.path.lexists(switch.current(name))]
    wrong = [*missing, *switch.list_changed()]
    if wrong and not force:
        raise OutputError(
            "a run that was replacing this checkpoint was stopped, and "
            f"{switch.path_of(wrong[0])} was changed or removed afterwards",
            hint="to replace the checkpoint, use --force (force=True in Python); to keep the "
            f"files, remove {record}",
        )
    if not missing:
        _name_all(switch, force=True)
    _forget(switch)


def _prepare_loadable(files: Sequence[tuple[str, str]]) -> None:
    """Create second names for the parts that an index lists, and write an index of these names.

    With this index, other libraries can load the new checkpoint while its files are renamed.
    """
    (index, path), *parts = files
    if format_by_index(path) is None:
        return
    try:
        for temporary, _ in parts:
            if loadable_name(temporary) != temporary:
                os.link(temporary, loadable_name(temporary))
    except OSError:  # a file system without hard links
        remove(loadable_name(temporary) for temporary, _ in parts)
        return
    names = {
        os.path.basename(path): os.path.basename(loadable_name(temporary))
        for temporary, path in parts
    }
    with open(index, encoding="utf-8") as file:
        document = json.load(file)
    document["weight_map"] = {
        tensor: names[name] for tensor, name in document["weight_map"].items()
    }
    _write(loadable_name(index), json.dumps(document, ensure_ascii=False).encode())


def _name_all(switch: Switch, *, force: bool) -> None:
    """Give the files of a recorded replacement their final names; this can be repeated."""
    leading = switch.path_of(switch.leading)
    interim = loadable_name(switch.path_of(switch.new[switch.leading]))
    if format_by_index(leading) is not None and os.path.lexists(interim):
        _publish(interim, leading, force=force or switch.leading in switch.old, keep=True)
    elif switch.leading in switch.old and not _is_ours(switch, switch.leading):
        # Old and new parts must not be mistaken for one set.
        remove([leading])
    for name, temporary in reversed(list(switch.new.items())):
        if os.path.lexists(switch.path_of(temporary)):
            path = switch.path_of(name)
            replaces = force or name in switch.old or _is_ours(switch, name)
            _publish(switch.path_of(temporary), path, force=replaces, keep=True)
    remove(switch.path_of(name) for name in switch.old if name not in switch.new)


def _undo(switch: Switch) -> None:
    """Undo a failed replacement, if all files that it would replace still exist."""
    if all(_is_there(switch, name) for name in switch.old):
        with suppress(OSError):
            own = [name for name in switch.new if _is_ours(switch, name)]
            remove(map(switch.path_of, own))
            _forget(switch)


def _is_there(switch: Switch, name: str) -> bool:
    return os.path.lexists(switch.path_of(name)) and not _is_ours(switch, name)


def _is_ours(switch: Switch, name: str) -> bool:
    """Whether the file with a name is already the new one, or the interim index."""
    if name not in switch.new:
        return False
    temporary = switch.path_of(switch.new[name])
    path = switch.path_of(name)
    if not os.path.lexists(temporary):  # a file system without hard links
        return os.path.lexists(path)
    return any(is_same_file(path, other) for other in (temporary, loadable_name(temporary)))


def _forget(switch: Switch) -> None:
    """Remove the record, and then the temporary and second names of the files."""
    sync_directory(os.path.dirname(switch.path))
    temporaries = list(map(switch.path_of, switch.new.values()))
    remove([switch.path, *map(loadable_name, temporaries), *temporaries])


def remove(paths: Iterable[str]) -> None:
    """Remove files, and directories with their contents; raise `OutputError` if one is left."""
    left: list[tuple[str, OSError]] = []
    for path in paths:
        try:
            with suppress(FileNotFoundError):
                remove_path(path)
        except OSError as error:
            if os.path.lexists(path):
                left.append((path, error))
    if left:
        path, cause = left[0]
        raise OutputError(
            f"{path} cannot be removed: {cause.strerror}", hint=explain_open_file(cause)
        ) from cause


def _write(path: str, content: bytes) -> None:
    """Write a small file, which gets its name when it is complete and on the disk."""
    temporary = temporary_name(without_temporary(path))
    try:
        write_durably(temporary, content)
    except OSError as error:
        remove([temporary])
        raise cannot_write(path, error) from error
    try:
        rename(temporary, path)
    except OutputError:
        remove([temporary])
        raise


def _publish(temporary: str, path: str, *, force: bool, keep: bool = False) -> None:
    """Give a complete file its final name.

    If `keep` is set and the file system supports hard links, the file also keeps its temporary
    name. Raises `OutputError` if the final name exists and `force` is not set.
    """
    if force and not keep:
        rename(temporary, path)
        return
    if force and os.path.lexists(path):
        if is_same_file(path, temporary):
            return
        second = temporary_name(path)
        try:
            with suppress(OSError):
                os.link(temporary, second)
                temporary = second
            rename(temporary, path)
        finally:
            remove([second])
        return
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise _cannot_replace(path) from error
    except OSError:  # a file system without hard links
        rename(temporary, path)
    else:
        if not keep:
            remove([temporary])


def _cannot_replace(path: str) -> OutputError:
    return OutputError(
        f"{path} was created during the run",
        hint="to replace it, use --force (force=True in Python)",
    )


def exchange(one: str, other: str) -> None:
    """Swap two names: atomically with Linux's `renameat2`, and in three steps on other systems."""
    if swap_names(one, other):
        return
    aside = aside_name(other)
    rename(other, aside)
    try:
        rename(one, other)
    except OutputError:
        rename(aside, other)
        raise
    rename(aside, one)


def rename(temporary: str, path: str) -> None:
    """Rename a file or directory; raises `OutputError` if that fails.

    An error of a network file system after the rename is ignored.
    """
    try:
        os.replace(temporary, path)
    except OSError as error:
        if os.path.lexists(temporary) or not os.path.lexists(path):
            raise cannot_write(path, error) from error
