"""Text arguments of opcodes, read in two ways: as Python writes them, and as leniently as possible.

The machine takes what Python writes. A scan takes at least what the C and the Python unpickler do
(`Modules/_pickle.c`): one that stops where they go on overlooks what follows.
"""

from __future__ import annotations

import re
from codecs import escape_decode

__all__ = ["MODULES", "as_index", "as_string", "integer", "is_float", "is_integer", "parse_quoted"]

# Modules that Python 2 calls otherwise.
MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}

# What Python itself turns into an integer, and no more.
_MOST_DIGITS = 4300
_ESCAPED = re.compile(
    rb"(?:[^\\]++|\\(?:[\\'\"abfnrtv\n]|x[0-9a-fA-F]{2}|[0-3][0-7]{0,2}|[4-7][0-7]?(?![0-7])))*+"
)
_SPACE = b" \t\n\r\v\f"
_INTEGER = re.compile(rb"[+-]?(?:0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*)")
_ESCAPE = re.compile(rb"\\(?:(\n)|([\\'\"abfnrtv])|x([0-9a-fA-F]{2})|([0-7]{1,3})|(x|\Z)|)")
_LETTERS = {
    b"\\": b"\\", b"'": b"'", b'"': b'"', b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n",
    b"r": b"\r", b"t": b"\t", b"v": b"\v",
}  # fmt: skip


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


def _c_string(line: bytes) -> bytes:
    """Return what C takes for the number in a line: it ends at the first NUL."""
    return line.partition(b"\0")[0].strip(_SPACE)


def is_integer(line: bytes) -> bool:
    """Whether the C or the Python unpickler reads a line as an integer; an empty one is 0 in C."""
    text = _c_string(line).removesuffix(b"L").strip(_SPACE)
    return not text or _INTEGER.fullmatch(text) is not None


def is_float(line: bytes) -> bool:
    """Whether the C or the Python unpickler reads a line as a float."""
    try:
        float(_c_string(line))
    except ValueError:
        return False
    return True


def as_index(line: bytes) -> int:
    """Return the index that a line of PUT or GET has; raises `ValueError` if it has none."""
    return int(_c_string(line))


def as_string(line: bytes) -> bytes:
    """Return the bytes that a line of STRING stands for; `ValueError` for one without quotes.

    Python warns of unknown escapes, and keeps them as they are.
    """
    line = line.strip(_SPACE)
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in {b"'", b'"'}:
        raise ValueError("a string has no quotes")
    return _ESCAPE.sub(_unescape, line[1:-1])


def _unescape(found: re.Match[bytes]) -> bytes:
    newline, letter, digits, octal, wrong = found.groups()
    if newline:
        return b""
    if letter:
        return _LETTERS[letter]
    if digits:
        return bytes([int(digits, 16)])
    if octal:
        return bytes([int(octal, 8) & 0xFF])
    if wrong is not None:
        raise ValueError("a string has an incomplete escape sequence")
    return b"\\"
