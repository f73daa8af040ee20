"""Files and directories that appear whole or not at all, and pipes."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from weightctl.errors import OutputError
from weightctl.formats.switch import switch_path
from weightctl.system.interrupts import uninterrupted
from weightctl.system.temporary import TEMPORARY, temporary_name
from weightctl.write.claims import entrance, is_same, lock_path, refuse_other_runs
from weightctl.write.output_file import OutputFile, cannot_write
from weightctl.write.replacing import complete, exchange, name_files, rename, sync_directory
from weightctl.write.targets import STDOUT, refuse_what_is_there, stream_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = [
    "OutputFile",
    "beginning",
    "cannot_write",
    "output_directory",
    "output_files",
    "output_stream",
]


@contextmanager
def output_files(
    *, force: bool = False, replaced: Sequence[str] = ()
) -> Generator[Callable[[str], OutputFile], None, None]:
    """Yield what opens a file for a path; each gets its name when all of them are whole.

    Whatever happens, the paths are either what they were or the complete new files; without
    `force` a file that has appeared there meanwhile stays. Until then a file has the name of its
    path with `.weightctl-`, eight hexadecimal digits and `.partial` behind it. It is removed on
    errors; after a power cut or kill -9 it stays until the next run begins. The paths of `replaced`
    are gone afterwards.

    Several files change their names as `weightctl.write.replacing` does it: whenever this process
    is killed, readers find the old set or the new one.
    """
    files: list[tuple[OutputFile, str]] = []
    is_named = False

    def create(path: str) -> OutputFile:
        with uninterrupted():
            opened = _new_file(path)
            files.append((opened, path))
        if os.path.exists(path):
            os.fchmod(opened.descriptor, stat.S_IMODE(os.stat(path).st_mode))
        return opened

    try:
        yield create
        for opened, _ in files:
            opened.sync()
        with uninterrupted():
            named = [(opened.path, path) for opened, path in files]
            name_files(named, force=force, old=replaced)
            is_named = True
        for directory in {os.path.dirname(path) for _, path in files}:
            sync_directory(directory)
    finally:
        with uninterrupted():
            # Where there is a record the next run gives them their names.
            is_kept = is_named or any(os.path.lexists(switch_path(path)) for _, path in files[:1])
            for opened, _ in files:
                if not is_kept:
                    with suppress(OSError):
                        os.unlink(opened.path)
                os.close(opened.descriptor)


@contextmanager
def output_directory(
    path: str, *, force: bool = False, is_ours: Callable[[str], bool]
) -> Generator[str, None, None]:
    """Yield the name of a new directory to fill; it becomes `path` when it is whole.

    The promises are those of `output_files`; what is already there is looked at once more before
    it goes (`refuse_what_is_there`).
    """
    temporary = temporary_name(path)
    lock = -1
    try:
        with uninterrupted():
            lock = _new_directory(temporary)
        if os.path.isdir(path):
            os.chmod(temporary, stat.S_IMODE(os.stat(path).st_mode))
        yield temporary
        sync_directory(temporary)
        with uninterrupted():
            _name_directory(temporary, path, force=force, is_ours=is_ours)
        sync_directory(os.path.dirname(path))
    finally:
        with uninterrupted():
            # What was there before has this name, where the two could not be exchanged back.
            if lock >= 0 and is_same(lock, temporary):
                shutil.rmtree(temporary, ignore_errors=True)
            if lock >= 0:
                os.close(lock)


def _new_directory(path: str) -> int:
    try:
        os.mkdir(path)
        return lock_path(path)
    except OSError as error:
        raise cannot_write(path, error) from error


def _name_directory(
    temporary: str, path: str, *, force: bool, is_ours: Callable[[str], bool]
) -> None:
    """Give a whole directory its name; what it takes the place of is removed."""
    if not os.path.isdir(path) or not os.listdir(path):
        rename(temporary, path)
        return
    exchange(temporary, path)
    try:
        refuse_what_is_there([temporary], force=force, is_ours=is_ours)
    except BaseException:
        exchange(temporary, path)
        raise
    with suppress(FileNotFoundError):  # a run that begins now removes it too
        shutil.rmtree(temporary)


@contextmanager
def output_stream(path: str) -> Generator[OutputFile, None, None]:
    """Open a pipe or device for writing from front to back; `-` is stdout.

    What has been written cannot be taken back. Opening a named pipe waits for its reader.
    """
    if stream_name(path) == stream_name(STDOUT):
        if not sys.stdout:  # it was closed before this process began
            raise OutputError("stdout is closed", hint="name a file")
        sys.stdout.flush()
        yield OutputFile(sys.stdout.fileno(), "stdout")
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield OutputFile(descriptor, path)
    finally:
        os.close(descriptor)


def _new_file(path: str) -> OutputFile:
    temporary = temporary_name(path)
    try:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise cannot_write(temporary, error) from error
    return OutputFile(descriptor, temporary, is_new=True)


@contextmanager
def beginning(
    path: str, names: re.Pattern[str] | None = None, *, force: bool = False
) -> Generator[None, None, None]:
    """Begin to write to a path: in the block the run opens its first file, or its directory.

    Raises `OutputError` where another run is writing to it. What runs that were killed have left
    is undone or brought to its end first: replacements, and temporary files that nobody has locked.
    They are those for `path`, and beside it those for the names of a pattern.
    """
    with entrance(os.path.dirname(path)):
        refuse_other_runs(path, names)
        complete(path, force=force)
        _clear_leftovers(path, names)
        yield


def _clear_leftovers(path: str, names: re.Pattern[str] | None) -> None:
    parent, base = os.path.split(path)
    own = re.escape(base) + (f"|{names.pattern}" if names else "")
    with suppress(OSError):
        _bring_back(parent, re.compile(f"({own})\\.old{TEMPORARY}"))
        pattern = re.compile(f"({own}){TEMPORARY}")
        for name in filter(pattern.fullmatch, os.listdir(parent)):
            leftover = os.path.join(parent, name)
            with suppress(OSError):
                os.close(lock_path(leftover))
                _remove(leftover)


def _bring_back(directory: str, pattern: re.Pattern[str]) -> None:
    """Give what waits beside its name that name again, or remove it where new ones are all there.

    That is a directory which could not be exchanged at one moment, or a set of files that an
    earlier version was replacing.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for name in sorted(os.listdir(directory)):
        found = pattern.fullmatch(name)
        if found:
            token = name[-len("01234567.partial") :]
            pair = (os.path.join(directory, name), os.path.join(directory, found[1]))
            groups.setdefault(token, []).append(pair)
    for pairs in groups.values():
        # The index, or the first part, is the first to go and the last to come.
        pairs.sort(key=lambda pair: (not pair[1].endswith(".json"), pair[1]))
        is_replaced = os.path.lexists(pairs[0][1])
        for aside, path in reversed(pairs):
            if is_replaced:
                _remove(aside)
            else:
                os.replace(aside, path)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
