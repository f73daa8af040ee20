"""Values that a pickle writes as Python does: integers in decimal, strings in quotes."""

from __future__ import annotations

import re
from codecs import escape_decode

__all__ = ["MODULES", "integer", "parse_quoted"]

# Modules that Python 2 calls otherwise.
MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}

# What Python itself turns into an integer, and no more.
_MOST_DIGITS = 4300
_ESCAPED = re.compile(
    rb"(?:[^\\]++|\\(?:[\\'\"abfnrtv\n]|x[0-9a-fA-F]{2}|[0-3][0-7]{0,2}|[4-7][0-7]?(?![0-7])))*+"
)


def integer(line: bytes) -> int:
    """Return an integer; raises `ValueError` for an invalid value."""
    if len(line) > _MOST_DIGITS:
        raise ValueError(f"an integer has {len(line)} digits; the limit is {_MOST_DIGITS}")
    return int(line)


def parse_quoted(line: bytes) -> str:
    """Parse a Python 2 string, one character per byte; raises `ValueError` if it is invalid."""
    line = line.strip()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in {b"'", b'"'}:
        raise ValueError("a string has no quotes")
    # Python warns of what it cannot decode, and decodes it in some other way.
    if _ESCAPED.fullmatch(line, 1, len(line) - 1) is None:
        raise ValueError("a string has an invalid escape sequence")
    return escape_decode(line[1:-1])[0].decode("latin-1")
