"""Opening, reading, writing and locking files by descriptors, alike on all systems.

Descriptors are those of `os`. Reads and writes have an offset, and do not move the descriptor's
position, so that threads can share it. All functions raise `OSError`.

What only some systems have is optional, and does nothing on others: the caller reads and writes the
bytes that `copy_range_at`, `clone_range_at` and `send_range` do not transfer.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import sys
from contextlib import suppress
from functools import cache
from typing import Any

# The characters that a path of a directory may end with.
SEPARATORS = os.sep + (os.altsep or "")
# The names of stdout among the files of a system.
STDOUT_FILES = frozenset({"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"})
# The capacity that is requested for a pipe, instead of 64 KiB, so that its reader and its writer
# wait less for each other. It is the default limit for users on Linux.
_ROOM = 1 << 20
_KEEP_SIZE = 1
# Names without a directory are of the current one, and `renameat2` swaps them.
_HERE, _EXCHANGE = -100, 2
_SYNC_FILE_RANGE_WRITE = 2
# The request of `ioctl` that makes files share blocks (linux/fs.h), and its argument: the
# descriptor of the source, an offset in it, a length, and an offset in the target.
_FICLONERANGE = 0x4020940D
_CLONE_RANGE = struct.Struct("=qQQQ")
# The request of `fcntl` on macOS that reserves space behind what a file has, and its argument
# (`fstore_t` of sys/fcntl.h): flags, a position, an offset from it, a length, what was reserved.
_PREALLOCATE, _ALLOCATE_ALL, _FROM_END = 42, 4, 3
_STORE = struct.Struct("=Iiqqq")
# Errors that writing without a reservation would also have.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Errors of file systems on a network, which lack a request.
_UNSUPPORTED = {errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}
# macOS refuses to read or write more at a time.
_MOST = 1 << 30
# The flags that some systems lack.
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
NO_TERMINAL: int = getattr(os, "O_NOCTTY", 0)
# Opening a pipe does not wait for its other end.
NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)

if sys.platform == "win32":
    from weightctl.system.windows import (
        explain_open_file,
        lock_file,
        map_private,
        open_file,
        open_to_lock,
        read_into_at,
        read_part_at,
        sync_directory,
        write_at,
    )
else:
    import fcntl

    # macOS's `fsync` does not wait for the disk.
    _FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    # Without MAP_NORESERVE, writable pages reserve memory, and a tensor may be larger than it.
    _PRIVATE = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)

    def open_file(path: str, flags: int, mode: int = 0o666) -> int:
        """Open a file for this process alone, not for its children; `flags` are those of `os`."""
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def read_part_at(descriptor: int, nbytes: int, offset: int) -> bytes:
        """Return the next bytes at an offset, at most so many; none at the end of the file."""
        return os.pread(descriptor, min(nbytes, _MOST), offset)

    def read_into_at(descriptor: int, buffer: memoryview, offset: int) -> int:
        """Read bytes at an offset into a buffer; return their number, 0 at the end of the file."""
        return os.preadv(descriptor, [buffer[:_MOST]], offset)

    def write_at(descriptor: int, data: memoryview, offset: int) -> int:
        """Write bytes at an offset; return how many of them were written."""
        return os.pwrite(descriptor, data[:_MOST], offset)

    def map_private(descriptor: int, nbytes: int, offset: int) -> mmap.mmap:
        """Map a range of a file; changes in memory are not written to the file."""
        writable = mmap.PROT_READ | mmap.PROT_WRITE
        return mmap.mmap(descriptor, nbytes, _PRIVATE, writable, offset=offset)

    def lock_file(descriptor: int, *, shared: bool = False, wait: bool = False) -> None:
        """Lock an open file until it is closed; `BlockingIOError` if another process locks it."""
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)

    def open_to_lock(path: str) -> int:
        """Open a file or directory that is then locked."""
        return open_file(path, os.O_RDONLY | NO_FOLLOW | NO_WAIT)

    def explain_open_file(error: OSError) -> str:
        """Return a hint if a file cannot be changed because a program has it open; else nothing."""
        del error  # only Windows refuses that
        return ""

    def sync_directory(path: str) -> None:
        """Wait until the names in a directory are on the disk, if its file system supports it."""
        with suppress(OSError):
            descriptor = open_file(path or ".", os.O_RDONLY)
            try:
                sync(descriptor)
            finally:
                os.close(descriptor)


__all__ = [
    "NO_FOLLOW", "NO_TERMINAL", "NO_WAIT", "SEPARATORS", "STDOUT_FILES", "change_mode",
    "clone_range_at", "copy_range_at", "count_allocated", "enlarge_pipe", "explain_open_file",
    "fold_name", "fold_path", "is_device_name", "lock_file", "map_private", "open_file",
    "open_locked", "read_ahead", "read_at", "read_into_at", "relative_name", "reserve",
    "send_range", "start_writing_back", "swap_names", "sync", "sync_data", "sync_directory",
    "wait_for_room", "write_all", "write_all_at", "write_at", "write_durably",
]  # fmt: skip


def open_locked(path: str, *, shared: bool = False, wait: bool = False) -> int:
    """Open a file or directory to lock it until it is closed; errors are as of `lock_file`."""
    descriptor = open_to_lock(path)
    try:
        lock_file(descriptor, shared=shared, wait=wait)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_at(descriptor: int, nbytes: int, offset: int) -> bytes:
    """Return the bytes at an offset; fewer if the file ends before."""
    found = read_part_at(descriptor, nbytes, offset)
    if len(found) == nbytes:
        return found
    parts = [found]
    while found and (nbytes := nbytes - len(found)):
        offset += len(found)
        found = read_part_at(descriptor, nbytes, offset)
        parts.append(found)
    return b"".join(parts)


def write_all_at(descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all bytes at an offset."""
    view = memoryview(data).cast("B")
    while view:
        count = write_at(descriptor, view, offset)
        view, offset = view[count:], offset + count


def sync(descriptor: int) -> None:
    """Wait until all written bytes of a file are on the disk."""
    if sys.platform != "win32" and _FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        else:
            return
    os.fsync(descriptor)


def sync_data(descriptor: int) -> None:
    """Wait until the written bytes of a file, and its size, are on the disk."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        sync(descriptor)


def write_durably(path: str, content: bytes, mode: str = "xb") -> None:
    """Write a small file, and wait until it is on the disk."""
    with open(path, mode) as file:
        file.write(content)
        file.flush()
        sync(file.fileno())


def change_mode(descriptor: int, mode: int) -> None:
    """Change the permissions of an open file, on systems that have them."""
    if sys.platform != "win32":
        os.fchmod(descriptor, mode)


def count_allocated(path: str) -> int:
    """Return the bytes that a file, which may have holes, takes on its disk."""
    status = os.lstat(path)
    blocks: int | None = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else 512 * blocks


def relative_name(path: str, directory: str) -> str:
    """Return the path of a file from a directory, with slashes on all systems."""
    return os.path.relpath(path, directory).replace(os.sep, "/")


def fold_name(name: str) -> str:
    """Return what all spellings of a name have in common, which are equal on macOS and Windows."""
    if sys.platform not in {"darwin", "win32"}:
        return name
    import unicodedata  # Linux does not need it

    return unicodedata.normalize("NFD", name).casefold()


def fold_path(path: str) -> str:
    """Return what all paths of a place have in common: the real path, as `fold_name` does."""
    return fold_name(os.path.realpath(path))


def is_device_name(path: str) -> bool:
    """Whether Windows takes a path in any directory for a device, such as `NUL` or `con.txt`."""
    if sys.platform != "win32":
        return False
    from weightctl.system.windows import is_reserved

    return is_reserved(path)


def enlarge_pipe(descriptor: int) -> None:
    """Request more capacity for a pipe; other files and systems are left as they are."""
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _ROOM)


def write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    """Append bytes to a file descriptor, blocking or not; raises `OSError` if that fails."""
    view = memoryview(data).cast("B")
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            wait_for_room(descriptor)


def wait_for_room(descriptor: int) -> None:
    """Wait until a non-blocking pipe accepts bytes, or its reader has closed it."""
    import select  # rarely needed

    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()


def copy_range_at(source: int, target: int, start: int, offset: int, count: int) -> int:
    """Copy `count` bytes at `start` of a file to `offset` of another, inside the kernel.

    Returns the number of bytes copied; 0 if the kernel does not support it or the source ends.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            return os.copy_file_range(source, target, count, start, offset)
    return 0


def clone_range_at(source: int, target: int, start: int, offset: int, count: int) -> bool:
    """Make a file share a range of another file, whose bytes are then not written.

    Offsets and length must be multiples of the file system's block size. Returns whether the file
    system could do it.
    """
    if sys.platform != "linux":
        return False
    import fcntl

    with suppress(OSError):
        fcntl.ioctl(target, _FICLONERANGE, _CLONE_RANGE.pack(source, start, count, offset))
        return True
    return False


def send_range(source: int, target: int, start: int, count: int) -> int:
    """Append bytes at `start` of a file to a pipe, device or file, inside the kernel.

    Returns the number of bytes copied; 0 if the kernel does not support it or the source ends.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            return os.sendfile(target, source, start, count)
    return 0


def reserve(descriptor: int, nbytes: int) -> None:
    """Reserve disk space for a file of this many bytes; its size does not change.

    Raises `OSError` if there is not enough space. Does nothing on file systems without support.
    """
    if sys.platform == "darwin":
        if (missing := nbytes - 512 * os.fstat(descriptor).st_blocks) > 0:
            try:
                request = _STORE.pack(_ALLOCATE_ALL, _FROM_END, 0, missing, 0)
                fcntl.fcntl(descriptor, _PREALLOCATE, request)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    raise
        return
    import ctypes  # reading a file does not need this

    call = _call("fallocate64") or _call("fallocate")
    if call is None or not nbytes:
        return
    length = ctypes.c_int64(nbytes)
    if call(descriptor, _KEEP_SIZE, ctypes.c_int64(0), length):
        number = ctypes.get_errno()
        if number in _NO_ROOM:
            raise OSError(number, os.strerror(number))


def swap_names(one: str, other: str) -> bool:
    """Swap the names of two files or directories in one step; return whether the system did it."""
    import ctypes

    swap = _call("renameat2")
    if swap is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    return not swap(_HERE, names[0], _HERE, names[1], ctypes.c_uint(_EXCHANGE))


def start_writing_back(descriptor: int, start: int, nbytes: int) -> None:
    """Start writing data back to the disk now, so that a later fsync has less to wait for.

    If `nbytes` is 0, the range extends to the end of the file.
    """
    import ctypes

    call = _call("sync_file_range")
    if call is not None:
        call(
            descriptor, ctypes.c_int64(start), ctypes.c_int64(nbytes),
            ctypes.c_uint(_SYNC_FILE_RANGE_WRITE),
        )  # fmt: skip


def read_ahead(descriptor: int, offset: int, nbytes: int) -> None:
    """Tell the operating system that a range of a file is needed soon."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, nbytes, os.POSIX_FADV_WILLNEED)


@cache
def _call(name: str) -> Any:
    """Return a function of the C library; None if the library does not have it."""
    import ctypes

    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), name, None)
