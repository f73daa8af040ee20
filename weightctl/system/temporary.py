"""Temporary names of incomplete files and directories."""

from __future__ import annotations

import os
import re

# Suffixes that loaders check.
_LOADABLE = (".safetensors", ".json")
# Suffix of the journal, after the name of a temporary file or directory.
JOURNAL = ".journal"
# Suffix after the name of a journal in an object store: the number of one of its objects.
JOURNAL_PART = rf"{re.escape(JOURNAL)}-\d{{8}}"
# Suffix after the name of a temporary object: the bytes of a part that a batch of tasks left.
REST = ".rest-"
_REST_PART = rf"{re.escape(REST)}[0-9a-f]{{8}}-\d+"
# Infix of a temporary name: after the final name, and before a suffix that loaders check.
_SUFFIXES = "|".join(map(re.escape, (*_LOADABLE, JOURNAL, f"{JOURNAL}.new")))
_PARTIAL = rf"\.partial(?:{_SUFFIXES}|{JOURNAL_PART}|{_REST_PART})?"
# Suffix of the directory of the markers by which ranks share a run; some stay with the output.
RANKS = ".ranks"
TEMPORARY = rf"\.weightctl-[0-9a-f]{{8}}(?:{_PARTIAL}|{re.escape(RANKS)})"
# Suffix of the record of an unfinished replacement, after the name of the set.
SWITCH = ".weightctl-switch.partial"
# The name of the record of an unfinished edit of files in a directory.
EDIT = "pending.weightctl-edit.partial"
_EDIT = EDIT.removeprefix("pending")
_END = re.compile(rf"(?:(?:\.old)?{TEMPORARY}|{re.escape(SWITCH)}|{re.escape(_EDIT)})\Z")


def temporary_name(path: str, token: str = "") -> str:
    """Return the temporary name of the output at a path, with `token` or a new token."""
    return f"{path}.weightctl-{token or new_token()}.partial"


def ranks_name(path: str, token: str) -> str:
    """Return the name of the markers by which ranks share a run that writes to a path."""
    return f"{path}.weightctl-{token}{RANKS}"


def token_of(name: str) -> str:
    """Return the token in a temporary name."""
    return name.rpartition(".weightctl-")[2][:8]


def aside_name(path: str) -> str:
    """Return a new name for the old file at a path while it is replaced."""
    return temporary_name(f"{path}.old")


def asides_of(path: str) -> list[str]:
    """Return the paths of old files that were moved aside to replace the file at a path."""
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
    """Return the final name of a temporary file; other names are unchanged."""
    return _END.sub("", name)


def is_temporary(name: str) -> bool:
    """Whether a name is that of a temporary file: an incomplete output."""
    return without_temporary(name) not in {name, ""}
