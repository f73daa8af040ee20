"""Files and directories that appear whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from weightctl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from weightctl.formats.base import Bytes

__all__ = ["OutputFile", "check_target", "output_directory", "output_file"]

_SUFFIX = ".partial"
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
                raise _refused(self._path, error) from error
            view = view[count:]
            self.nbytes += count

    def sync(self) -> None:
        """Wait until the bytes are on the disk."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise _refused(self._path, error) from error


def check_target(
    path: str, nbytes: int, inputs: Iterable[str], *, force: bool, replaceable: Iterable[str] = ()
) -> None:
    """Refuse, before anything is written, a target that must not or cannot be written.

    That is one that exists (unless `force`), one of the inputs, one in a place that does not
    exist or may not be written, or one too large for its disk. An existing directory is replaced
    only when all it holds is called like one of `replaceable`.
    """
    parent = os.path.dirname(os.path.abspath(path))
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
            f"{path} holds files that a conversion did not write: {', '.join(foreign[:3])}",
            hint="choose another directory, or move them away",
        )


@contextmanager
def output_file(path: str) -> Generator[OutputFile, None, None]:
    """Write a file under a temporary name beside `path`, and give it its name when it is whole.

    Whatever happens, `path` is either what it was or the complete new file. The temporary file,
    `path` with `.partial` behind it, is removed on errors; after a power cut or kill -9 it stays,
    and the next run takes it over.
    """
    temporary = path + _SUFFIX
    descriptor = _claimed(temporary)
    try:
        target = OutputFile(descriptor, temporary)
        yield target
        target.sync()
        _rename(temporary, path)
        _sync_directory(os.path.dirname(os.path.abspath(path)))
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)


def _claimed(temporary: str) -> int:
    """Open a temporary file that no other process is writing."""
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(temporary, flags, 0o666)
    except OSError as error:
        raise _refused(temporary, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
    except OSError as error:
        os.close(descriptor)
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            raise OutputError(
                f"{temporary} is being written by another process", hint="wait until it is done"
            ) from error
        raise _refused(temporary, error) from error
    return descriptor


@contextmanager
def output_directory(path: str) -> Generator[str, None, None]:
    """Yield the name of a directory to fill; it becomes `path` when it is whole.

    The promises are those of `output_file`.
    """
    path = path.rstrip("/")
    temporary = path + _SUFFIX
    try:
        os.makedirs(temporary, exist_ok=True)
        lock = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise _refused(temporary, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise OutputError(
            f"{temporary} is being written by another process", hint="wait until it is done"
        ) from error
    try:
        yield temporary
        _sync_directory(temporary)
        if os.path.isdir(path) and os.listdir(path):
            _exchange(temporary, path)
            shutil.rmtree(temporary)
        else:
            _rename(temporary, path)
        _sync_directory(os.path.dirname(os.path.abspath(path)))
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _exchange(one: str, other: str) -> None:
    """Swap two names at once (Linux `renameat2`); elsewhere one after the other."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if swap is not None and not swap(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
    ):
        return
    aside = other + ".replaced"
    _rename(other, aside)
    _rename(one, other)
    _rename(aside, one)


def _rename(temporary: str, path: str) -> None:
    try:
        os.replace(temporary, path)
    except OSError as error:
        raise _refused(path, error) from error


def _sync_directory(path: str) -> None:
    with suppress(OSError):  # some file systems cannot, and keep the name anyway
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _refused(path: str, error: OSError) -> OutputError:
    hints = {
        errno.ENOSPC: "free some space; the target is as it was",
        errno.EDQUOT: "your quota is used up; the target is as it was",
        errno.EFBIG: "the file system or a limit (ulimit -f) allows no larger file",
    }
    return OutputError(
        f"{path} cannot be written: {error.strerror}", hint=hints.get(error.errno or 0, "")
    )
