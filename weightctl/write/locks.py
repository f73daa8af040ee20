"""Locks temporary files, so that only one run at a time writes an output.

A run holds locks on its temporary files, or its directory, until it ends. The locks end with the
process. Runs that begin in the same directory look for locks one after the other. Temporary files
without a lock are left from a killed run.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from weightctl.errors import OutputError
from weightctl.system.files import open_locked
from weightctl.system.temporary import JOURNAL, RANKS, TEMPORARY, is_temporary, token_of

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator


def lock_path(path: str) -> int:
    """Open a file or directory, and lock it until it is closed; `OSError` if it is locked."""
    return open_locked(path)


def is_same_directory(status: os.stat_result | None, path: str) -> bool:
    """Whether a directory with this status is the one at a path."""
    return status is not None and os.path.isdir(path) and os.path.samestat(status, os.stat(path))


@contextmanager
def entrance(directory: str) -> Generator[None, None, None]:
    """Prevent other runs from starting in a directory, if the file system supports locks.

    This is held while a run looks for other runs and locks its first temporary file.
    """
    descriptor = -1
    try:
        with suppress(OSError):
            descriptor = open_locked(directory, wait=True)
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def refuse_other_runs(path: str, names: re.Pattern[str] | None = None, shared: str = "") -> None:
    """Raise `OutputError` if another run is writing to a path, or to its directory.

    `names` is a pattern of further output files next to the path. `shared` is the token of a run
    that this process shares with others, which is ignored.
    """
    directory = os.path.dirname(path)
    inside: list[str] = []
    with suppress(OSError):
        inside = [os.path.join(path, name) for name in os.listdir(path) if is_temporary(name)]
    found = [*find_leftovers(path, names), *find_leftovers(directory), *inside]
    if any(_is_locked(each) for each in found if token_of(each) != shared):
        raise OutputError(
            f"another run is writing {path}", hint="wait until the other run has ended, or stop it"
        )


def find_leftovers(path: str, names: re.Pattern[str] | None = None) -> Iterator[str]:
    """Yield temporary files and directories for a path, and for files next to it.

    `names` is a pattern of the names of these files.
    """
    directory = os.path.dirname(path)
    with suppress(OSError):
        for name in filter(_pattern(path, names).fullmatch, os.listdir(directory)):
            yield os.path.join(directory, name)


def _pattern(path: str, names: re.Pattern[str] | None, suffix: str = "") -> re.Pattern[str]:
    """Return a pattern of temporary names, with the final name as its first group."""
    own = re.escape(os.path.basename(path)) + (f"|{names.pattern}" if names else "")
    return re.compile(f"({own}){suffix}{TEMPORARY}")


def find_journal(path: str) -> str | None:
    """Return the path of a stopped run's journal; None if there is none."""
    return next((each for each in find_leftovers(path) if each.endswith(JOURNAL)), None)


def _is_locked(path: str) -> bool:
    # Shared locks do not conflict with each other, but those of a shared run must be detected.
    try:
        os.close(open_locked(path, shared=not path.endswith(RANKS)))
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def clear_leftovers(path: str, names: re.Pattern[str] | None, kept: Collection[str]) -> None:
    """Remove temporary files that are not locked, except those with the tokens `kept`."""
    with suppress(OSError):
        _bring_back(os.path.dirname(path), _pattern(path, names, r"\.old"))
    for leftover in list(find_leftovers(path, names)):
        if token_of(leftover) in kept:
            continue
        with suppress(OSError):
            os.close(lock_path(leftover))
            remove_path(leftover)


def _bring_back(directory: str, pattern: re.Pattern[str]) -> None:
    """Restore a path from its temporary name, or remove the old content if the new is complete.

    This concerns a directory that could not be exchanged atomically, or a set of files that an
    earlier version was replacing.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for name in sorted(os.listdir(directory)):
        found = pattern.fullmatch(name)
        if found:
            pair = (os.path.join(directory, name), os.path.join(directory, found[1]))
            groups.setdefault(token_of(name), []).append(pair)
    for pairs in groups.values():
        # The index, or the first part, is moved away first and back last.
        pairs.sort(key=lambda pair: (not pair[1].endswith(".json"), pair[1]))
        is_replaced = os.path.lexists(pairs[0][1])
        for aside, path in reversed(pairs):
            if is_replaced:
                remove_path(aside)
            else:
                os.replace(aside, path)


def remove_path(path: str) -> None:
    """Remove a file, or a directory with its contents; raises `OSError` if that fails."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
