"""The functions of macOS in place of Linux's, with `pytest --simulate macos`.

No Mac has run weightctl. This shows that nothing needs what macOS lacks: copies and exchanged names
inside the kernel, `fdatasync`. Reads and writes transfer few bytes at a time, as macOS does for
more than 2 GiB, and a name that differs from an existing one by case only is that name. Processes
that tests start are not changed. A test with the fixture `macos` always runs so.
"""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import os
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from weightctl.system import files

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["macos", "pytest_addoption", "pytest_collection_modifyitems", "pytest_configure"]

# `F_FULLFSYNC` and `F_PREALLOCATE` of macOS, and the bytes that a read or write transfers here.
FULL_SYNC, PREALLOCATE, MOST = 51, 42, 100_000
KEEP_SIZE = 1
# The functions that take paths, and how many of their first arguments are paths.
OF_PATHS = {
    "chmod": 1, "link": 2, "listdir": 1, "lstat": 1, "mkdir": 1, "open": 1, "rename": 2,
    "replace": 2, "rmdir": 1, "scandir": 1, "stat": 1, "unlink": 1,
}  # fmt: skip
# Tests of what only Linux promises.
OF_LINUX = {
    "test_a_tensor_is_recorded_behind_its_file_reaching_the_disk": "macOS has no fdatasync",
}
LISTDIR, LSTAT = os.listdir, os.lstat


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--simulate", choices=["macos"], help="run as on another system")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--simulate"):
        simulate(pytest.MonkeyPatch())


@pytest.fixture
def macos(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Run a test as on macOS."""
    if not request.config.getoption("--simulate"):
        simulate(monkeypatch)


def simulate(patch: pytest.MonkeyPatch) -> None:
    control = fcntl.fcntl

    def fcntl_of_macos(descriptor: int, command: int, *arguments: Any) -> Any:
        if command == FULL_SYNC:
            return os.fsync(descriptor)
        if command == PREALLOCATE:
            return allocate(descriptor, *arguments)
        return control(descriptor, command, *arguments)

    patch.setattr(files, "sys", SimpleNamespace(platform="darwin"))
    patch.setattr(files, "fcntl", SimpleNamespace(**{**vars(fcntl), "fcntl": fcntl_of_macos}))
    patch.setattr(files, "_FULL_SYNC", FULL_SYNC)
    patch.setattr(files, "_MOST", MOST)
    patch.delattr(os, "fdatasync")
    patch.delattr(os, "posix_fadvise", raising=False)
    for name, count in OF_PATHS.items():
        patch.setattr(os, name, in_any_case(getattr(os, name), count))
    patch.setattr(builtins, "open", in_any_case(open, 1))


def allocate(descriptor: int, request: bytes) -> None:
    """Reserve space behind what a file has, as `F_PREALLOCATE` does with F_PEOFPOSMODE."""
    flags, position, start, length, _ = struct.unpack("=Iiqqq", request)
    assert (flags, position, start) == (4, 3, 0)
    library = ctypes.CDLL(None, use_errno=True)
    start = ctypes.c_int64(512 * os.fstat(descriptor).st_blocks)
    if library.fallocate(descriptor, KEEP_SIZE, start, ctypes.c_int64(length)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def in_any_case(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return a function that finds paths in any case; the first `count` arguments are paths."""

    def found(*arguments: Any, **options: Any) -> Any:
        if "dir_fd" not in options:
            arguments = (*map(spell, arguments[:count]), *arguments[count:])
        return function(*arguments, **options)

    return found


def spell(path: Any) -> Any:
    """Return a path with the names that its files have; what is not a path is unchanged."""
    if not isinstance(path, (str, os.PathLike)):
        return path
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        return path
    try:
        LSTAT(text)
    except OSError:
        pass
    else:
        return path
    directory, name = os.path.split(text.rstrip("/"))
    directory = spell(directory)
    try:
        names = LISTDIR(directory or ".")
    except OSError:
        return path
    same = [each for each in names if each.casefold() == name.casefold()]
    return os.path.join(directory, same[0] if same else name) + "/" * text.endswith("/")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--simulate"):
        for item in items:
            if reason := OF_LINUX.get(item.name.partition("[")[0]):
                item.add_marker(pytest.mark.skip(reason=reason))
