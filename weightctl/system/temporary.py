"""The names of files and directories until they are whole."""

from __future__ import annotations

import os
import re

__all__ = [
    "JOURNAL",
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
# Behind the name of a temporary file or directory: the journal of what is complete in it.
JOURNAL = ".journal"
# Behind the name that an output is to have, and behind that a suffix where loaders need one.
_SUFFIXES = "|".join(map(re.escape, (*_LOADABLE, JOURNAL, f"{JOURNAL}.new")))
TEMPORARY = rf"\.weightctl-[0-9a-f]{{8}}\.partial(?:{_SUFFIXES})?"
# Behind the name of a set: the record of a replacement that is under way.
SWITCH = ".weightctl-switch.partial"
_END = re.compile(rf"(?:(?:\.old)?{TEMPORARY}|{re.escape(SWITCH)})\Z")


def temporary_name(path: str, token: str = "") -> str:
    """Return the name, until it is whole, for what a run makes at a path; a new one by default."""
    return f"{path}.weightctl-{token or new_token()}.partial"


def token_of(name: str) -> str:
    """Return the token in a temporary name."""
    return name.rpartition(".weightctl-")[2][:8]


def aside_name(path: str) -> str:
    """Return a new name for what was at a path, until what replaces it is there."""
    return temporary_name(f"{path}.old")


def asides_of(path: str) -> list[str]:
    """Return the paths at which something from a path waits until what replaces it is there."""
    directory, base = os.path.split(path)
    pattern = re.compile(rf"{re.escape(base)}\.old{TEMPORARY}")
    try:
        names = sorted(filter(pattern.fullmatch, os.listdir(directory or ".")))
    except OSError:
        return []
    return [os.path.join(directory, name) for name in names]


def loadable_name(temporary: str) -> str:
    """Return a second name for a temporary file, with the suffix that the file is to have.

    Libraries that load what an index lists go by the suffix; where none does, the name is the same.
    """
    suffix = os.path.splitext(without_temporary(temporary))[1]
    return temporary + suffix if suffix in _LOADABLE else temporary


def new_token() -> str:
    """Return eight hexadecimal digits that no other run has."""
    return os.urandom(4).hex()


def without_temporary(name: str) -> str:
    """Return the name that an output is to have; any other name as it is."""
    return _END.sub("", name)


def is_temporary(name: str) -> bool:
    """Whether a file of this name is there only until an output is whole."""
    return without_temporary(name) not in {name, ""}
