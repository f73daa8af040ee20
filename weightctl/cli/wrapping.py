"""Wraps sentences to lines that fit a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.cli.render import Cell
from weightctl.text.columns import width, wrap_text
from weightctl.text.wording import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAST = 20


def hung(heads: Sequence[Cell], text: str, room: int | None, style: str = "") -> list[list[Cell]]:
    """Return the lines of a text that begins after `heads`, with a hanging indent.

    Lines have at most `room` columns; if `room` is None, the text is on one line. If the heads
    leave little room, the text begins on the next line.
    """
    taken = sum(width(head.text) for head in heads)
    text = printable(text)
    if room is None:
        return [[*heads, Cell(text, style)]]
    indent = taken
    if room - taken < _LEAST:
        indent = len(heads[0].text) - len(heads[0].text.lstrip()) + 4 if heads else 0
    lines = wrap_text(text, max(room - indent, _LEAST), cuts_words=True)
    if indent != taken:
        return [[*heads], *([Cell(" " * indent), Cell(line, style)] for line in lines)]
    rest = [[Cell(" " * indent), Cell(line, style)] for line in lines[1:]]
    return [[*heads, Cell(lines[0] if lines else "", style)], *rest]
