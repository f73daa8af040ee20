"""Text inside Markdown, of which nothing that a file says can become markup."""

from __future__ import annotations

import re

from weightctl.verify.report.phrases import cut
from weightctl.wording import printable

__all__ = ["code", "text"]

# What begins markup, a link or a mention; an underscore between letters does not.
_SIGNS = re.compile(r"[\\`*\[\]<>~&#$@!]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# What makes a list or a heading of a line that it begins.
_FIRST = re.compile(r"[-+=](?=[-=\s]|$)|\d+[.)](?=\s|$)")
_LONGEST = 120


def text(written: str) -> str:
    """Return a text of ours in which what stands between two backticks is code, in one line."""
    return "<br>".join(_line(line.strip()) for line in written.split("\n") if line.strip())


def code(shown: str, most: int = _LONGEST) -> str:
    """Return a text as code of at most so many characters, which nothing in it ends."""
    shown = cut(shown, max(most, 1))
    if "|" in shown:
        # In a table it would end the cell, and how it is escaped there differs between readers.
        return f"<code>{''.join(map(_entity, shown))}</code>"
    if not shown.strip():
        return f'"{shown}"'
    longest = max(map(len, re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    room = " " if longest else ""
    return f"{fence}{room}{shown}{room}{fence}"


def _line(line: str) -> str:
    pieces = line.split("`")
    if len(pieces) % 2 == 0:
        return _plain(line)
    first, *others = pieces
    return _plain(first) + "".join(
        code(piece) if number % 2 else _escaped(piece)
        for number, piece in enumerate(others, start=1)
        if piece
    )


def _plain(line: str) -> str:
    """Return text that may stand at the beginning of a line."""
    begins = _FIRST.match(line)
    if begins is None:
        return _escaped(line)
    last = begins.end() - 1
    return f"{line[:last]}\\{line[last]}{_escaped(line[last + 1 :])}"


def _escaped(line: str) -> str:
    return _SIGNS.sub(r"\\\g<0>", printable(line)).replace("|", "&#124;")


def _entity(char: str) -> str:
    return char if char.isalnum() or char in " ./-" else f"&#{ord(char)};"
