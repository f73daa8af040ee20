"""Text arguments of opcodes, parsed in two ways: strictly, as Python writes them, and leniently.

The machine accepts what Python writes. A scan must accept everything that the C or the Python
unpickler accepts (`Modules/_pickle.c`): if it stopped earlier, it would miss the globals that
follow.
"""

from __future__ import annotations

import re
from codecs import escape_decode

# Modules that have another name in Python 2.
MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}

# Python's own limit for the digits of an integer.
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
    """Return an integer as Python writes it; raises `ValueError` if it is invalid."""
    if len(line) > _MOST_DIGITS:
        raise ValueError(f"an integer has {len(line)} digits; the limit is {_MOST_DIGITS}")
    return int(line)


def parse_quoted(line: bytes) -> str:
    """Parse a Python 2 string, one character per byte; raises `ValueError` if it is invalid."""
    line = line.strip()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in {b"'", b'"'}:
        raise ValueError("a string has no quotes")
    # `escape_decode` only warns about invalid escape sequences.
    if _ESCAPED.fullmatch(line, 1, len(line) - 1) is None:
        raise ValueError("a string has an invalid escape sequence")
    return escape_decode(line[1:-1])[0].decode("latin-1")


def _c_string(line: bytes) -> bytes:
    """Return the text that the C unpickler parses as a number: it ends at the first NUL."""
    return line.partition(b"\0")[0].strip(_SPACE)


def is_integer(line: bytes) -> bool:
    """Whether the C or the Python unpickler reads a line as an integer; in C, an empty one is 0."""
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
    """Return the index in a line of PUT or GET; raises `ValueError` if it is not an integer."""
    return int(_c_string(line))


def as_string(line: bytes) -> bytes:
    """Return the bytes of a STRING opcode's line; raises `ValueError` if it has no quotes.

    Unknown escape sequences are kept unchanged, as in Python.
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
