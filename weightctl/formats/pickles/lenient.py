"""Text arguments of opcodes, as CPython's C unpickler reads them: it accepts more than is written.

Source: `Modules/_pickle.c`. Each function accepts at least what the C and the Python unpickler do:
a scan that stops where they go on overlooks what follows.
"""

from __future__ import annotations

import re

__all__ = ["as_index", "as_string", "is_float", "is_integer"]

_SPACE = b" \t\n\r\v\f"
_INTEGER = re.compile(rb"[+-]?(?:0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*)")
_ESCAPE = re.compile(rb"\\(?:(\n)|([\\'\"abfnrtv])|x([0-9a-fA-F]{2})|([0-7]{1,3})|(x|\Z)|)")
_LETTERS = {
    b"\\": b"\\", b"'": b"'", b'"': b'"', b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n",
    b"r": b"\r", b"t": b"\t", b"v": b"\v",
}  # fmt: skip


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
