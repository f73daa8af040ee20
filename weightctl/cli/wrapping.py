"""Sentences on lines that fit a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from weightctl.cli.render import Cell, width
from weightctl.text.wording import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["hung", "wrap_text"]

_LEAST = 20
# Spaces, but for those between a number and its unit.
_UNIT = re.compile(r" (?!%)(?!(?<=\d )(?:nats|[kMGT]i?B?|B)\b)")


def hung(heads: Sequence[Cell], text: str, room: int | None, style: str = "") -> list[list[Cell]]:
    """Return the lines of a text that begins behind `heads`; the others begin as far to the right.

    Without `room` it is one line. Heads that leave little room have a line of their own.
    """
    taken = sum(width(head.text) for head in heads)
    text = printable(text)
    if room is None:
        return [[*heads, Cell(text, style)]]
    indent = taken
    if room - taken < _LEAST:
        indent = len(heads[0].text) - len(heads[0].text.lstrip()) + 4 if heads else 0
    lines = wrap_text(text, max(room - indent, _LEAST))
    if indent != taken:
        return [[*heads], *([Cell(" " * indent), Cell(line, style)] for line in lines)]
    rest = [[Cell(" " * indent), Cell(line, style)] for line in lines[1:]]
    return [[*heads, Cell(lines[0] if lines else "", style)], *rest]


def wrap_text(text: str, room: int) -> list[str]:
    """Return a printable text in lines of at most so many columns; what has no spaces is cut."""
    lines: list[str] = []
    line = ""
    for word in _words(text, room):
        if line and width(line) + 1 + width(word) > room:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line else lines


def _words(text: str, room: int) -> Iterator[str]:
    for word in _UNIT.split(" ".join(text.split())):
        left = word
        while width(left) > room and len(left) > 1:
            end = room
            while end > 1 and width(left[:end]) > room:
                end -= 1
            yield left[:end]
            left = left[end:]
        yield left
