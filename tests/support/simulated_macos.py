"""The functions of macOS in place of Linux's, with `pytest --simulate macos`.

No Mac has run weightctl. This shows that nothing needs what macOS lacks: copies and exchanged names
inside the kernel, `fdatasync`. Reads and writes transfer few bytes at a time, as
macOS does for more than 2 GiB. Processes that tests start are not changed.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from weightctl.system import files

__all__ = ["pytest_addoption", "pytest_collection_modifyitems", "pytest_configure"]

# `F_FULLFSYNC` and `F_PREALLOCATE` of macOS, and the bytes that a read or write transfers here.
FULL_SYNC, PREALLOCATE, MOST = 51, 42, 100_000
KEEP_SIZE = 1
# Tests of what only Linux promises.
OF_LINUX = {
    "test_a_tensor_is_recorded_behind_its_file_reaching_the_disk": "macOS has no fdatasync",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--simulate", choices=["macos"], help="run as on another system")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--simulate"):
        return
    control = fcntl.fcntl

    def fcntl_of_macos(descriptor: int, command: int, *arguments: Any) -> Any:
        if command == FULL_SYNC:
            return os.fsync(descriptor)
        if command == PREALLOCATE:
            return allocate(descriptor, *arguments)
        return control(descriptor, command, *arguments)

    files.__dict__["sys"] = SimpleNamespace(platform="darwin")
    files.__dict__["fcntl"] = SimpleNamespace(**{**vars(fcntl), "fcntl": fcntl_of_macos})
    files.__dict__["_FULL_SYNC"], files.__dict__["_MOST"] = FULL_SYNC, MOST
    del os.fdatasync
    if hasattr(os, "posix_fadvise"):
        del os.posix_fadvise


def allocate(descriptor: int, request: bytes) -> None:
    """Reserve space behind what a file has, as `F_PREALLOCATE` does with F_PEOFPOSMODE."""
    flags, position, start, length, _ = struct.unpack("=Iiqqq", request)
    assert (flags, position, start) == (4, 3, 0)
    library = ctypes.CDLL(None, use_errno=True)
    start = ctypes.c_int64(512 * os.fstat(descriptor).st_blocks)
    if library.fallocate(descriptor, KEEP_SIZE, start, ctypes.c_int64(length)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--simulate"):
        for item in items:
            if reason := OF_LINUX.get(item.name.partition("[")[0]):
                item.add_marker(pytest.mark.skip(reason=reason))
