"""One run at a time writes an output: locks on temporary files, which end with their process.

No file is there for the lock alone. A run has locked its first temporary file, or its directory,
from its beginning to its end; runs that begin in the same directory look for such locks one after
the other.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from weightctl.errors import OutputError
from weightctl.system.temporary import TEMPORARY, is_temporary

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["BEING_WRITTEN", "entrance", "is_same", "lock_path", "refuse_other_runs"]

BEING_WRITTEN = "wait until the other run has ended, or stop it"


def lock_path(path: str) -> int:
    """Open a file or directory with a lock that ends with this process; `OSError` if it has one."""
    return _open_locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _open_locked(path: str, lock: int) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, lock)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_same(descriptor: int, path: str) -> bool:
    """Whether the directory that is open is still the one at a path."""
    return os.path.isdir(path) and os.path.samestat(os.fstat(descriptor), os.stat(path))


@contextmanager
def entrance(directory: str) -> Generator[None, None, None]:
    """Let no other run begin in a directory meanwhile, where the file system has such locks.

    It is for the moment in which a run looks for others and locks its first temporary file.
    """
    descriptor = -1
    try:
        with suppress(OSError):
            descriptor = _open_locked(directory, fcntl.LOCK_EX)
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def refuse_other_runs(path: str, names: re.Pattern[str] | None = None) -> None:
    """Raise `OutputError` where another run is writing to a path, or the directory that has it.

    `names` is the pattern of further files of the output beside the path.
    """
    if any(map(_is_locked, _claims(path, names))):
        raise OutputError(f"another run is writing {path}", hint=BEING_WRITTEN)


def _claims(path: str, names: re.Pattern[str] | None) -> Iterator[str]:
    """Yield the paths that a run which writes to a path may have locked."""
    directory = os.path.dirname(path)
    yield from _temporaries(path, names)
    yield from _temporaries(directory, None)
    with suppress(OSError):
        yield from (os.path.join(path, name) for name in os.listdir(path) if is_temporary(name))


def _temporaries(path: str, names: re.Pattern[str] | None) -> Iterator[str]:
    directory, base = os.path.split(path)
    own = re.escape(base) + (f"|{names.pattern}" if names else "")
    pattern = re.compile(f"({own}){TEMPORARY}")
    with suppress(OSError):
        yield from (
            os.path.join(directory, name)
            for name in os.listdir(directory)
            if pattern.fullmatch(name)
        )
    yield f"{path}.partial"  # where shards are written


def _is_locked(path: str) -> bool:
    try:
        # Two that only ask do not meet.
        os.close(_open_locked(path, fcntl.LOCK_SH | fcntl.LOCK_NB))
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
