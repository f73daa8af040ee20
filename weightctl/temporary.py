"""What files and directories are called until they are whole."""

from __future__ import annotations

import re
import secrets

__all__ = ["TEMPORARY", "is_temporary", "temporary_name"]

# Behind the name that an output is to have.
TEMPORARY = r"\.weightctl-[0-9a-f]{8}\.partial"
_NAME = re.compile(".+" + TEMPORARY, re.DOTALL)


def temporary_name(path: str) -> str:
    """Return a new name for what is to be at a path."""
    return f"{path}.weightctl-{secrets.token_hex(4)}.partial"


def is_temporary(name: str) -> bool:
    """Whether a file of this name is an output that is not whole."""
    return _NAME.fullmatch(name) is not None
