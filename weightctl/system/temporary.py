"""The temporary names of files and directories that are incomplete."""

from __future__ import annotations

import os
import re

__all__ = [
    "JOURNAL",
    "JOURNAL_PART",
    "RANKS",
    "REST",
    "SWITCH",
    "TEMPORARY",
    "aside_name",
    "asides_of",
    "is_temporary",
    "loadable_name",
    "new_token",
    "temporary_name",
    "token_of",
    "without_temporary",
]

# Suffixes that loaders go by.
_LOADABLE = (".safetensors", ".json")
# Suffix of the journal, after the name of a temporary file or directory.
JOURNAL = ".journal"
# Behind the name of a journal in an object store: the number of one of its objects.
JOURNAL_PART = rf"{re.escape(JOURNAL)}-\d{{8}}"
# Behind the name of a temporary object: a batch of tasks, which left bytes of parts there.
REST = ".rest-"
_REST_PART = rf"{re.escape(REST)}[0-9a-f]{{8}}-\d+"
# Suffix of the directory of the markers by which ranks share a run.
RANKS = ".ranks"
# Infix of a temporary name: after the final name, and before a suffix that loaders need.
_SUFFIXES = "|".join(map(re.escape, (*_LOADABLE, JOURNAL, f"{JOURNAL}.new", RANKS)))
TEMPORARY = rf"\.weightctl-[0-9a-f]{{8}}\.partial(?:{_SUFFIXES}|{JOURNAL_PART}|{_REST_PART})?"
# Suffix of the record of a replacement that is not finished, after the name of the set.
SWITCH = ".weightctl-switch.partial"
_END = re.compile(rf"(?:(?:\.old)?{TEMPORARY}|{re.escape(SWITCH)})\Z")


def temporary_name(path: str, token: str = "") -> str:
    """Return the temporary name of the output at a path; with a new token by default."""
    return f"{path}.weightctl-{token or new_token()}.partial"


def token_of(name: str) -> str:
    """Return the token in a temporary name."""
    return name.rpartition(".weightctl-")[2][:8]


def aside_name(path: str) -> str:
    """Return a new name for the old file at a path while it is replaced."""
    return temporary_name(f"{path}.old")


def asides_of(path: str) -> list[str]:
    """Return the paths of old files that were moved aside while a path is replaced."""
    directory, base = os.path.split(path)
    pattern = re.compile(rf"{re.escape(base)}\.old{TEMPORARY}")
    try:
        names = sorted(filter(pattern.fullmatch, os.listdir(directory or ".")))
    except OSError:
        return []
    return [os.path.join(directory, name) for name in names]


def loadable_name(temporary: str) -> str:
    """Return a second name for a temporary file, with the suffix of the final file.

    Libraries that load the files of an index check the suffix. The name is unchanged for files that
    are not loaded this way.
    """
    suffix = os.path.splitext(without_temporary(temporary))[1]
    return temporary + suffix if suffix in _LOADABLE else temporary


def new_token() -> str:
    """Return eight random hexadecimal digits."""
    return os.urandom(4).hex()


def without_temporary(name: str) -> str:
    """Return the final name of a temporary file; any other name is unchanged."""
    return _END.sub("", name)


def is_temporary(name: str) -> bool:
    """Whether a file of this name is temporary: an output that is incomplete."""
    return without_temporary(name) not in {name, ""}
