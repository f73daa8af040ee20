"""Files and directories that appear whole or not at all, and pipes."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import stat
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from weightctl.errors import OutputError
from weightctl.interrupts import uninterrupted
from weightctl.output_file import OutputFile, refused
from weightctl.targets import STDOUT, refuse_what_is_there, stream_name
from weightctl.temporary import TEMPORARY, aside_name, new_token, temporary_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = [
    "OutputFile",
    "clear_leftovers",
    "exchange",
    "is_same",
    "locked",
    "output_directory",
    "output_files",
    "output_stream",
    "refused",
    "rename",
    "sync_directory",
]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def output_files(
    *, force: bool = False, replaced: Sequence[str] = ()
) -> Generator[Callable[[str], OutputFile], None, None]:
    """Yield what opens a file for a path; each gets its name when all of them are whole.

    Whatever happens, the paths are either what they were or the complete new files; without
    `force` a file that has appeared there meanwhile stays. Until then a file has the name of its
    path with `.weightctl-`, eight hexadecimal digits and `.partial` behind it. It is removed on
    errors; after a power cut or kill -9 it stays until `clear_leftovers`. The paths of `replaced`
    are gone afterwards.

    Several files cannot get their names at one moment. The one that was opened first, which leads
    to the others, gets its name last, so that a set is not there before it is complete; what was
    there before waits under other names, from which `clear_leftovers` brings it back.
    """
    files: list[tuple[OutputFile, str]] = []

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
            _name_all(named, force=force, replaced=replaced)
        for directory in {os.path.dirname(path) for _, path in files}:
            sync_directory(directory)
    finally:
        with uninterrupted():
            for opened, _ in files:
                with suppress(OSError):  # those that have their names are gone from here
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
        return locked(path)
    except OSError as error:
        raise refused(path, error) from error


def is_same(descriptor: int, path: str) -> bool:
    """Whether the directory that is open is still the one at a path."""
    return os.path.isdir(path) and os.path.samestat(os.fstat(descriptor), os.stat(path))


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
        raise refused(path, error) from error
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
        raise refused(temporary, error) from error
    return OutputFile(descriptor, temporary, is_new=True)


def locked(path: str) -> int:
    """Open a file or directory with a lock that ends with this process; `OSError` if it has one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def clear_leftovers(path: str, names: re.Pattern[str] | None = None) -> None:
    """Undo what killed runs have left half done: temporary files that nobody holds locked.

    They are those for `path`, and beside it those for the names of a pattern. A set that was to be
    replaced, and was not yet, gets its names back.
    """
    parent, base = os.path.split(path)
    own = re.escape(base) + (f"|{names.pattern}" if names else "")
    with suppress(OSError):
        _bring_back(parent, re.compile(f"({own})\\.old{TEMPORARY}"))
        pattern = re.compile(f"({own}){TEMPORARY}")
        for name in filter(pattern.fullmatch, os.listdir(parent)):
            leftover = os.path.join(parent, name)
            with suppress(OSError):
                os.close(locked(leftover))
                if os.path.isdir(leftover):
                    shutil.rmtree(leftover)
                else:
                    os.unlink(leftover)


def _bring_back(directory: str, pattern: re.Pattern[str]) -> None:
    """Give old files their names again, or remove them where the new ones are all there."""
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
                os.unlink(aside)
            else:
                os.replace(aside, path)


def _name_all(files: list[tuple[str, str]], *, force: bool, replaced: Sequence[str]) -> None:
    """Give whole files their names, the first one last."""
    if len(files) == 1 and not replaced:
        ((temporary, path),) = files
        _name(temporary, path, force=force)
        return
    token = new_token()
    moved: list[tuple[str, str]] = []
    named: list[str] = []
    try:
        # Without its first file an old set is incomplete, and cannot be taken for the new one.
        for path in [*(path for _, path in files if force), *replaced]:
            if os.path.lexists(path):
                aside = aside_name(path, token)
                rename(path, aside)
                moved.append((aside, path))
        for temporary, path in reversed(files):
            _name(temporary, path, force=False)
            named.append(path)
    except BaseException:
        for path in named:
            os.unlink(path)
        for aside, path in reversed(moved):
            rename(aside, path)
        raise
    for aside, _ in reversed(moved):
        os.unlink(aside)


def _name(temporary: str, path: str, *, force: bool) -> None:
    """Give a whole file its name; without `force` only where nothing has that name."""
    if force:
        rename(temporary, path)
        return
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        message = f"{path} has appeared meanwhile"
        raise OutputError(message, hint="pass --force to replace it") from error
    except OSError:  # a file system without hard links
        rename(temporary, path)
    else:
        os.unlink(temporary)


def exchange(one: str, other: str) -> None:
    """Swap two names at once (Linux `renameat2`); elsewhere one after the other."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if swap is not None and not swap(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
    ):
        return
    aside = temporary_name(other)
    rename(other, aside)
    rename(one, other)
    rename(aside, one)


def rename(temporary: str, path: str) -> None:
    """Give a file or directory another name; `OutputError` where that is refused."""
    try:
        os.replace(temporary, path)
    except OSError as error:
        raise refused(path, error) from error


def sync_directory(path: str) -> None:
    """Wait until the names in a directory are on the disk."""
    with suppress(OSError):  # some file systems cannot, and keep the name anyway
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
