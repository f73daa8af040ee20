"""What files and directories are called until they are whole."""

from __future__ import annotations

import os
import re

__all__ = [
    "TEMPORARY",
    "aside_name",
    "is_temporary",
    "new_token",
    "temporary_name",
    "without_temporary",
]

# Behind the name that an output is to have.
TEMPORARY = r"\.weightctl-[0-9a-f]{8}\.partial"
_END = re.compile(TEMPORARY + r"\Z")
_NAME = re.compile(".+" + TEMPORARY, re.DOTALL)


def temporary_name(path: str) -> str:
    """Return a new name for what is to be at a path."""
    return f"{path}.weightctl-{new_token()}.partial"


def aside_name(path: str, token: str) -> str:
    """Return the name under which what was at a path waits until all that replaces it is there."""
    return f"{path}.old.weightctl-{token}.partial"


def new_token() -> str:
    """Return eight hexadecimal digits that no other run has."""
    return os.urandom(4).hex()


def without_temporary(name: str) -> str:
    """Return the name that an output is to have; any other name as it is."""
    return _END.sub("", name)


def is_temporary(name: str) -> bool:
    """Whether a file of this name is an output that is not whole."""
    return _NAME.fullmatch(name) is not None
