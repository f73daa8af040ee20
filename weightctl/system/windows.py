"""What Windows does otherwise with files and processes: calls of kernel32 by `ctypes`.

Paths may have more than 260 characters in a process that imports this module. Files are opened so
that they can be renamed and removed while they are open. A lock is of one byte past the end of a
file, so that other programs can read it. Directories cannot be locked: a file among the user's
temporary files is locked in their place.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import mmap
import os
import pathlib
import sys
import tempfile
from ctypes import wintypes
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

if sys.platform != "win32":
    raise ImportError("this module is for Windows")

import msvcrt

# winnt.h, fileapi.h and winbase.h.
_GENERIC_READ, _GENERIC_WRITE = 0x80000000, 0x40000000
_SHARE_ALL = 0x7
_CREATE_NEW, _CREATE_ALWAYS, _OPEN_EXISTING, _OPEN_ALWAYS, _TRUNCATE_EXISTING = range(1, 6)
_ATTRIBUTE_NORMAL = 0x80
_LOCK_EXCLUSIVE, _LOCK_AT_ONCE = 0x2, 0x1
_LOCKED_BYTE = 1 << 62
_END_OF_FILE, _LOCK_VIOLATION, _ERROR_IO_PENDING = 38, 33, 997
_INVALID_HANDLE = wintypes.HANDLE(-1).value
_QUERY_LIMITED, _STILL_ACTIVE = 0x1000, 259
_MOST = 1 << 30
_EXTENDED_LIMITS, _LIMITS_TIME, _LIMITS_MEMORY = 9, 0x2, 0x100
# The errors that say, or may say, that another program has a file open: access denied, sharing
# violation, lock violation.
_ACCESS_DENIED, _SHARING_VIOLATION = 5, 32
_MOST_PROGRAMS = 64
# A bit of the process's environment block: the system then takes paths of more than 260 characters
# as they are, in all calls. It is not documented, but every program in Go sets it
# (runtime/os_windows.go). Otherwise a setting of the system decides.
_OFFSET_OF_BITS, _TAKES_LONG_PATHS = 3, 0x80
# The numbers of the standard streams that terminals show, and the mode in which consoles act on
# escape sequences.
_SHOWN, _ACTS_ON_ESCAPES = (-11, -12), 0x4
# The pointers that these calls fill.
_OUTPUTS = {"GetExitCodeProcess": 1, "GetProcessTimes": 4, "CloseHandle": 0}


class _Overlapped(ctypes.Structure):
    """OVERLAPPED of minwinbase.h: the offset of a read or write."""

    _fields_ = (
        ("internal", ctypes.c_void_p), ("internal_high", ctypes.c_void_p),
        ("offset", wintypes.DWORD), ("offset_high", wintypes.DWORD), ("event", wintypes.HANDLE),
    )  # fmt: skip


class _JobLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION of winnt.h."""

    _fields_ = (
        ("time", ctypes.c_int64), ("job_time", ctypes.c_int64), ("flags", wintypes.DWORD),
        ("least_set", ctypes.c_size_t), ("most_set", ctypes.c_size_t),
        ("processes", wintypes.DWORD), ("affinity", ctypes.c_size_t),
        ("priority", wintypes.DWORD), ("scheduling", wintypes.DWORD),
        ("transfers", ctypes.c_uint64 * 6), ("memory", ctypes.c_size_t),
        ("job_memory", ctypes.c_size_t), ("peak", ctypes.c_size_t), ("job_peak", ctypes.c_size_t),
    )  # fmt: skip


class _Program(ctypes.Structure):
    """RM_PROCESS_INFO of restartmanager.h: a program that has a file open."""

    _fields_ = (
        ("process", wintypes.DWORD), ("started", wintypes.FILETIME), ("name", wintypes.WCHAR * 256),
        ("service", wintypes.WCHAR * 64), ("kind", ctypes.c_int), ("status", wintypes.ULONG),
        ("session", wintypes.DWORD), ("can_restart", wintypes.BOOL),
    )  # fmt: skip


def explain_open_file(error: OSError) -> str:
    """Return what to do about an error because another program has a file open; empty otherwise."""
    if error.winerror not in {_ACCESS_DENIED, _SHARING_VIOLATION, _LOCK_VIOLATION}:
        return ""
    paths = (os.path.abspath(path) for path in (error.filename, error.filename2) if path)
    if programs := _list_programs([file for path in paths for file in _list_files(path)]):
        return f"close the programs that have the file open: {', '.join(programs)}"
    hint = "close the program that has the file open"
    return f"{hint}, or check its permissions" if error.winerror == _ACCESS_DENIED else hint


def _list_files(path: str) -> Iterator[str]:
    if os.path.isfile(path):
        yield path
    for parent, _, names in os.walk(path):
        yield from (os.path.join(parent, name) for name in names)


def _list_programs(files: list[str]) -> list[str]:
    """Return the programs that have files open; none if the system does not tell."""
    library = ctypes.WinDLL("rstrtmgr")
    session, key = wintypes.DWORD(), ctypes.create_unicode_buffer(33)
    if library.RmStartSession(ctypes.byref(session), 0, key):
        return []
    names, found = (wintypes.LPCWSTR * len(files))(*files), (_Program * _MOST_PROGRAMS)()
    needed, count, reasons = wintypes.UINT(), wintypes.UINT(len(found)), wintypes.DWORD()
    filled = ctypes.byref(needed), ctypes.byref(count), found, ctypes.byref(reasons)
    failed = library.RmRegisterResources(session, len(files), names, 0, None, 0, None)
    failed = failed or library.RmGetList(session, *filled)
    library.RmEndSession(session)
    listed = [] if failed else found[: count.value]
    return [f"{each.name} (process {each.process})" for each in listed]


def open_file(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a file for this process alone; `flags` are those of `os`, and `mode` is ignored."""
    del mode
    if flags & os.O_RDWR:
        access = _GENERIC_READ | _GENERIC_WRITE
    else:
        access = _GENERIC_WRITE if flags & os.O_WRONLY else _GENERIC_READ
    if flags & os.O_CREAT:
        creation = _CREATE_NEW if flags & os.O_EXCL else _OPEN_ALWAYS
        creation = _CREATE_ALWAYS if flags & os.O_TRUNC else creation
    else:
        creation = _TRUNCATE_EXISTING if flags & os.O_TRUNC else _OPEN_EXISTING
    handle = _kernel().CreateFileW(
        os.fspath(path), access, _SHARE_ALL, None, creation, _ATTRIBUTE_NORMAL, None
    )
    if handle == _INVALID_HANDLE:
        raise _make_error(path)
    return msvcrt.open_osfhandle(handle, (flags & (os.O_RDONLY | os.O_APPEND)) | os.O_BINARY)


def read_part_at(descriptor: int, nbytes: int, offset: int) -> bytes:
    """Return the next bytes at an offset, at most so many; none at the end of the file."""
    made = bytearray(min(nbytes, _MOST))
    count = read_into_at(descriptor, memoryview(made), offset)
    return bytes(made[:count]) if count < len(made) else bytes(made)


def read_into_at(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Read bytes at an offset into a buffer; return their number, 0 at the end of the file."""
    return _transfer("ReadFile", descriptor, buffer, offset)


def write_at(descriptor: int, data: memoryview, offset: int) -> int:
    """Write bytes at an offset; return how many of them were written."""
    return _transfer("WriteFile", descriptor, data, offset)


def _transfer(call: str, descriptor: int, buffer: memoryview, offset: int) -> int:
    wanted, done = min(buffer.nbytes, _MOST), wintypes.DWORD()
    if not wanted:
        return 0
    at = _at(offset)
    memory = (
        _address_of(buffer) if buffer.readonly else ctypes.byref(ctypes.c_char.from_buffer(buffer))
    )
    handle = msvcrt.get_osfhandle(descriptor)
    if getattr(_kernel(), call)(handle, memory, wanted, ctypes.byref(done), ctypes.byref(at)):
        return done.value
    if ctypes.get_last_error() == _END_OF_FILE:
        return 0
    raise _make_error(None)


def _address_of(buffer: memoryview) -> Any:
    """Return what a foreign function reads of memory that Python does not let it change."""
    import numpy as np  # knows the address of read-only memory

    return np.frombuffer(buffer, np.uint8).ctypes.data_as(ctypes.c_void_p)


def map_private(descriptor: int, nbytes: int, offset: int) -> mmap.mmap:
    """Map a range of a file; changes in memory are not written to the file."""
    return mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_COPY, offset=offset)


def lock_file(descriptor: int, *, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file until it is closed; `BlockingIOError` if another process locks it."""
    flags = (0 if shared else _LOCK_EXCLUSIVE) | (0 if wait else _LOCK_AT_ONCE)
    handle = msvcrt.get_osfhandle(descriptor)
    if _kernel().LockFileEx(handle, flags, 0, 1, 0, ctypes.byref(_at(_LOCKED_BYTE))):
        return
    if ctypes.get_last_error() in {_LOCK_VIOLATION, _ERROR_IO_PENDING}:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    raise _make_error(None)


def open_to_lock(path: str) -> int:
    """Open a file that is then locked: for a directory, one among the user's temporary files."""
    if not os.path.isdir(path):
        return open_file(path, os.O_RDONLY)
    status = os.stat(path)
    name = hashlib.sha256(f"{status.st_dev} {status.st_ino}".encode()).hexdigest()[:16]
    path = os.path.join(tempfile.gettempdir(), f"weightctl-{name}.lock")
    return open_file(path, os.O_RDWR | os.O_CREAT)


def find_process_start(number: int) -> str:
    """Return the start time of a process as text; empty if the process has ended."""
    kernel = _kernel()
    process = kernel.OpenProcess(_QUERY_LIMITED, False, number)
    if not process:
        return ""
    times = [wintypes.FILETIME() for _ in range(4)]
    try:
        code = wintypes.DWORD()
        kernel.GetExitCodeProcess(process, ctypes.byref(code))
        if code.value != _STILL_ACTIVE:
            return ""
        kernel.GetProcessTimes(process, *map(ctypes.byref, times))
    finally:
        kernel.CloseHandle(process)
    return str(times[0].dwHighDateTime << 32 | times[0].dwLowDateTime)


def limit_process(memory: int, seconds: int | None) -> None:
    """Limit the memory of this process in bytes, and its processor time, by a job object."""
    limits = _JobLimits(flags=_LIMITS_MEMORY, memory=memory)
    if seconds is not None:
        limits.flags |= _LIMITS_TIME
        limits.time = seconds * 10**7  # in units of 100 ns
    kernel = _kernel()
    job = kernel.CreateJobObjectW(None, None)
    size = ctypes.sizeof(limits)
    is_set = kernel.SetInformationJobObject(job, _EXTENDED_LIMITS, ctypes.byref(limits), size)
    if not is_set or not kernel.AssignProcessToJobObject(job, kernel.GetCurrentProcess()):
        raise _make_error(None)


def allow_escapes() -> bool:
    """Whether all consoles that this process writes to act on escape sequences, from now on."""
    if hasattr(ctypes.WinDLL("ntdll"), "wine_get_version"):
        return False  # wine accepts the mode, and counts the characters of escape sequences
    kernel, mode = _kernel(), wintypes.DWORD()
    return all(
        kernel.SetConsoleMode(handle, mode.value | _ACTS_ON_ESCAPES)
        for handle in map(kernel.GetStdHandle, _SHOWN)
        if kernel.GetConsoleMode(handle, ctypes.byref(mode))
    )


def is_reserved(path: str) -> bool:
    """Whether a path is the name of a device in any directory, such as `NUL` or `con.txt`."""
    if sys.version_info >= (3, 13):
        return os.path.isreserved(path)
    return pathlib.PureWindowsPath(path).is_reserved()


def find_memory() -> int:
    """Return the size of this machine's memory, in bytes."""
    kibibytes = ctypes.c_ulonglong()
    if not _kernel().GetPhysicallyInstalledSystemMemory(ctypes.byref(kibibytes)):
        raise _make_error(None)
    return kibibytes.value << 10


def sync_directory(path: str) -> None:
    """Do nothing: NTFS records names with the files."""
    del path


def _at(offset: int) -> _Overlapped:
    return _Overlapped(offset=offset & 0xFFFFFFFF, offset_high=offset >> 32)


def _make_error(path: str | None) -> OSError:
    error: OSError = ctypes.WinError(ctypes.get_last_error())
    error.filename = path
    return error


@cache
def _kernel() -> Any:
    library = ctypes.WinDLL("kernel32", use_last_error=True)
    library.CreateFileW.restype = wintypes.HANDLE
    library.CreateFileW.argtypes = (
        wintypes.LPCWSTR, wintypes.DWORD, wintypes.DWORD, ctypes.c_void_p, wintypes.DWORD,
        wintypes.DWORD, wintypes.HANDLE,
    )  # fmt: skip
    for call in (library.ReadFile, library.WriteFile):
        call.argtypes = (
            wintypes.HANDLE, ctypes.c_void_p, wintypes.DWORD, ctypes.c_void_p, ctypes.c_void_p,
        )  # fmt: skip
    library.CreateJobObjectW.restype = library.GetCurrentProcess.restype = wintypes.HANDLE
    library.SetInformationJobObject.argtypes = (
        wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD,
    )  # fmt: skip
    library.AssignProcessToJobObject.argtypes = (wintypes.HANDLE, wintypes.HANDLE)
    library.OpenProcess.restype = wintypes.HANDLE
    for call in (library.GetExitCodeProcess, library.GetProcessTimes, library.CloseHandle):
        call.argtypes = (wintypes.HANDLE, *(ctypes.c_void_p,) * _OUTPUTS[call.__name__])
    library.GetStdHandle.restype = wintypes.HANDLE
    library.GetConsoleMode.argtypes = (wintypes.HANDLE, ctypes.c_void_p)
    library.SetConsoleMode.argtypes = (wintypes.HANDLE, wintypes.DWORD)
    library.LockFileEx.argtypes = (
        wintypes.HANDLE, wintypes.DWORD, wintypes.DWORD, wintypes.DWORD, wintypes.DWORD,
        ctypes.c_void_p,
    )  # fmt: skip
    return library


def _allow_long_paths() -> None:
    find = ctypes.WinDLL("ntdll").RtlGetCurrentPeb
    find.restype = ctypes.c_void_p
    ctypes.c_ubyte.from_address(find() + _OFFSET_OF_BITS).value |= _TAKES_LONG_PATHS


_allow_long_paths()
