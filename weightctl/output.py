"""Files and directories that appear whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from weightctl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from weightctl.formats.base import Bytes

__all__ = [
    "OutputFile",
    "check_target",
    "clear_leftovers",
    "output_directory",
    "output_file",
    "refused",
]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class OutputFile:
    """A file being written; `nbytes` counts what it has so far."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path
        self.nbytes = 0

    def write(self, data: Bytes, /) -> None:
        """Append bytes; `OutputError` where the file system refuses them."""
        view = memoryview(data).cast("B")
        while view:
            try:
                count = os.write(self._descriptor, view)
            except OSError as error:
                raise refused(self._path, error) from error
            view = view[count:]
            self.nbytes += count

    def sync(self) -> None:
        """Wait until the bytes are on the disk."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise refused(self._path, error) from error


def check_target(
    path: str, nbytes: int, inputs: Iterable[str], *, force: bool, replaceable: Iterable[str] = ()
) -> None:
    """Refuse, before anything is written, a target that must not or cannot be written.

    That is one that exists (unless `force`), one of the inputs, one in a place that does not
    exist or may not be written, or one too large for its disk. An existing directory is replaced
    only when all it holds is called like one of `replaceable`.
    """
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        raise OutputError(f"{path}: the directory {parent} does not exist", hint="create it first")
    if not os.access(parent, os.W_OK):
        raise OutputError(f"{path}: {parent} may not be written", hint="choose another place")
    _refuse_inputs(path, inputs)
    if os.path.isdir(path):
        _refuse_foreign(path, set(replaceable), force=force)
    elif os.path.lexists(path) and not force:
        raise OutputError(f"{path} exists", hint="pass --force to replace it")
    disk = shutil.disk_usage(parent)
    # Some file systems do not tell: all their figures are zero.
    if disk.total and nbytes > disk.free:
        raise OutputError(
            f"{path}: {nbytes} bytes are needed and {disk.free} are free on its disk",
            hint="free some space, or choose another disk",
        )


def _refuse_inputs(path: str, inputs: Iterable[str]) -> None:
    for name in inputs:
        same = os.path.exists(path) and os.path.samefile(name, path)
        inside = os.path.isdir(path) and os.path.samefile(os.path.dirname(name) or ".", path)
        if same or inside:
            raise OutputError(
                f"{path} is the input itself" if same else f"{path} holds the input {name}",
                hint="choose another name for the output",
            )


def _refuse_foreign(path: str, replaceable: set[str], *, force: bool) -> None:
    there = os.listdir(path)
    if there and not force:
        raise OutputError(f"{path} exists and is not empty", hint="pass --force to replace it")
    foreign = sorted(set(there) - replaceable)
    if foreign:
        raise OutputError(
            f"{path} holds files that this conversion would not write: {', '.join(foreign[:3])}",
            hint="choose another directory, or move them away",
        )


@contextmanager
def output_file(path: str, *, force: bool = False) -> Generator[OutputFile, None, None]:
    """Write a file under a temporary name beside `path`, and give it its name when it is whole.

    Whatever happens, `path` is either what it was or the complete new file; without `force` a
    file that has appeared there meanwhile stays. The temporary file, `path` with `.weightctl-`,
    eight hexadecimal digits and `.partial` behind it, is removed on errors; after a power cut or
    kill -9 it stays until `clear_leftovers`.
    """
    descriptor, temporary = _new_file(path)
    try:
        if os.path.exists(path):
            os.fchmod(descriptor, stat.S_IMODE(os.stat(path).st_mode))
        target = OutputFile(descriptor, temporary)
        yield target
        target.sync()
        _name(temporary, path, force=force)
        _sync_directory(os.path.dirname(path))
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)


@contextmanager
def output_directory(
    path: str, *, force: bool = False, replaceable: Iterable[str] = ()
) -> Generator[str, None, None]:
    """Yield the name of a new directory to fill; it becomes `path` when it is whole.

    The promises are those of `output_file`; what `check_target` says of `replaceable` is looked
    at once more before anything goes.
    """
    temporary = _temporary(path)
    try:
        os.mkdir(temporary)
        lock = _locked(temporary)
    except OSError as error:
        raise refused(temporary, error) from error
    try:
        if os.path.isdir(path):
            os.chmod(temporary, stat.S_IMODE(os.stat(path).st_mode))
        yield temporary
        _sync_directory(temporary)
        if os.path.isdir(path) and os.listdir(path):
            _exchange(temporary, path)
            try:
                _refuse_foreign(temporary, set(replaceable), force=force)
            except BaseException:
                _exchange(temporary, path)
                raise
            shutil.rmtree(temporary)
        else:
            _rename(temporary, path)
        _sync_directory(os.path.dirname(path))
    except BaseException:
        # Where the names could not be exchanged back, what was there before has this name.
        if os.path.isdir(temporary) and os.path.samestat(os.fstat(lock), os.stat(temporary)):
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _temporary(path: str) -> str:
    return f"{path}.weightctl-{secrets.token_hex(4)}.partial"


def _new_file(path: str) -> tuple[int, str]:
    temporary = _temporary(path)
    try:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise refused(temporary, error) from error
    return descriptor, temporary


def _locked(path: str) -> int:
    """Open a file or directory with a lock that ends with this process; `OSError` if it has one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def clear_leftovers(path: str) -> None:
    """Remove the temporary files for `path` of runs that were killed: those nobody holds locked."""
    parent, base = os.path.split(path)
    pattern = re.compile(re.escape(base) + r"\.weightctl-[0-9a-f]{8}\.partial")
    with suppress(OSError):
        for name in filter(pattern.fullmatch, os.listdir(parent)):
            leftover = os.path.join(parent, name)
            with suppress(OSError):
                os.close(_locked(leftover))
                if os.path.isdir(leftover):
                    shutil.rmtree(leftover)
                else:
                    os.unlink(leftover)


def _name(temporary: str, path: str, *, force: bool) -> None:
    """Give a whole file its name; without `force` only where nothing has that name."""
    if force:
        _rename(temporary, path)
        return
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        message = f"{path} has appeared meanwhile"
        raise OutputError(message, hint="pass --force to replace it") from error
    except OSError:  # a file system without hard links
        _rename(temporary, path)
    else:
        os.unlink(temporary)


def _exchange(one: str, other: str) -> None:
    """Swap two names at once (Linux `renameat2`); elsewhere one after the other."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if swap is not None and not swap(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
    ):
        return
    aside = _temporary(other)
    _rename(other, aside)
    _rename(one, other)
    _rename(aside, one)


def _rename(temporary: str, path: str) -> None:
    try:
        os.replace(temporary, path)
    except OSError as error:
        raise refused(path, error) from error


def _sync_directory(path: str) -> None:
    with suppress(OSError):  # some file systems cannot, and keep the name anyway
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def refused(path: str, error: OSError) -> OutputError:
    """Return an error that says why the file system does not take an output."""
    hints = {
        errno.ENOSPC: "free some space; the target is as it was",
        errno.EDQUOT: "your quota is used up; the target is as it was",
        errno.EFBIG: "the file system or a limit (ulimit -f) allows no larger file",
    }
    return OutputError(
        f"{path} cannot be written: {error.strerror}", hint=hints.get(error.errno or 0, "")
    )
