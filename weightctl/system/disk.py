"""File operations of Linux beyond reading and writing; on other systems they do nothing.

Each function takes file descriptors. All of them are optional: the caller reads and writes the
bytes that they do not transfer.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from contextlib import suppress
from functools import cache
from typing import Any

_KEEP_SIZE = 1
_SYNC_FILE_RANGE_WRITE = 2
# The request of `ioctl` that makes files share blocks (linux/fs.h), and its argument: the
# descriptor of the source, an offset in it, a length, and an offset in the target.
_FICLONERANGE = 0x4020940D
_CLONE_RANGE = struct.Struct("=qQQQ")
# Errors that writing without a reservation would also have.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


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
    import ctypes  # reading a file does not need this

    call = _call("fallocate64") or _call("fallocate")
    if call is None or not nbytes:
        return
    length = ctypes.c_int64(nbytes)
    if call(descriptor, _KEEP_SIZE, ctypes.c_int64(0), length):
        number = ctypes.get_errno()
        if number in _NO_ROOM:
            raise OSError(number, os.strerror(number))


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
