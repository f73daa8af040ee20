"""Wraps text, and aligns cells in columns, to a number of columns of a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from weightctl.text.wording import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_GAP = "  "
# The fewest columns for the first column of a table.
_LEAST = 24
# The fewest columns for a text that begins after others on its first line.
_LEAST_TEXT = 20

# Spaces, except between a number and its unit.
_BETWEEN_WORDS = re.compile(r" (?!%)(?!(?<=\d )(?:nats|[kMGT]i?B?|B)\b)")


def width(text: str) -> int:
    """Return how many columns of a terminal a printable text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # seldom needed

    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in {"W", "F"} else 1 for char in text
    )


def wrap_text(text: str, room: int, *, cuts_words: bool = False) -> list[str]:
    """Return a printable text in lines of at most `room` columns.

    Lines break between words. A word that is longer than a line, such as a path, has a line of its
    own; it is split only if `cuts_words` is set.
    """
    lines: list[str] = []
    line = ""
    for word in _words(text, room if cuts_words else None):
        if line and width(line) + 1 + width(word) > room:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line else lines


def _words(text: str, most: int | None) -> Iterator[str]:
    for word in _BETWEEN_WORDS.split(" ".join(text.split())):
        left = word
        while most is not None and width(left) > most and len(left) > 1:
            end = most
            while end > 1 and width(left[:end]) > most:
                end -= 1
            yield left[:end]
            left = left[end:]
        yield left


class Cell(NamedTuple):
    """A text, its style (such as `bold red`), and whether it is aligned to the right.

    `short` replaces the text if lines do not fit the terminal.
    """

    text: str
    style: str = ""
    right: bool = False
    short: str | None = None


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as text: `512x256`, or `scalar`."""
    return "x".join(map(str, shape)) or "scalar"


def make_shape_cells(
    shape: Sequence[int], label: str, short: str | None = None, times: int = 1
) -> tuple[Cell, Cell]:
    """Return two cells: a shape with the number of tensors that have it, and their encoding."""
    count = f"{times} x " if times > 1 else ""
    return Cell(count + shape_text(shape), right=True), Cell(label, "cyan", short=short)


def in_columns(rows: Iterable[Sequence[Cell]], room: int | None) -> list[list[Cell]]:
    """Align rows in columns.

    If `room` is given, cells are shortened so that lines fit into it. A name in the first column
    that is still too long has a line of its own.
    """
    table = [
        [cell if cell[0].isprintable() else cell._replace(text=printable(cell[0])) for cell in row]
        for row in rows
    ]
    widths = _widths(table)
    if widths and room is not None:
        if _total(widths) > room:
            table = [[_brief(cell) for cell in row] for row in table]
            widths = _widths(table)
        others = _total(widths) - widths[0]
        widths[0] = min(widths[0], max(room - others, _LEAST))
        return [line for row in table for line in _lay_out(row, widths, room)]
    return [_align_cells(row, widths) for row in table]


def _lay_out(row: Sequence[Cell], widths: Sequence[int], room: int) -> list[list[Cell]]:
    """Return the line of a row, or two lines if its first cell is too long for its column."""
    first, *others = row
    if width(first.text) <= widths[0] or not any(cell.text for cell in others):
        return [_align_cells(row, widths)]
    name = Cell(without_middle(first.text, room), first.style)
    return [[name], _align_cells([Cell(" "), *others], widths)]


def count_columns(rows: Iterable[Sequence[Cell]]) -> int:
    """Return how many columns of the terminal a table needs if no cell is shortened."""
    return _total(_widths([*rows]))


def _widths(table: Sequence[Sequence[Cell]]) -> list[int]:
    widths: list[int] = []
    for row in table:
        widths += [0] * (len(row) - len(widths))
        for column, cell in enumerate(row):
            taken = len(cell[0]) if cell[0].isascii() else width(cell[0])
            widths[column] = max(widths[column], taken)
    return widths


def _total(widths: Sequence[int]) -> int:
    # A column that is empty in every row has no gap.
    return sum(widths) + len(_GAP) * (sum(map(bool, widths)) - 1)


def _brief(cell: Cell) -> Cell:
    return cell if cell.short is None else cell._replace(text=printable(cell.short))


def _align_cells(row: Sequence[Cell], widths: Sequence[int]) -> list[Cell]:
    cells: list[Cell] = []
    for cell, room in zip(row, widths, strict=False):
        if not room:
            continue
        text, style, right, _ = cell
        taken = width(text)
        if taken > room:
            text = without_middle(text, room)
            taken = width(text)
        padding = " " * (room - taken)
        gap = _GAP if cells else ""
        cells.append(Cell(gap + (padding + text if right else text + padding), style))
    return cells


def without_middle(text: str, room: int) -> str:
    """Shorten a text to `room` columns by removing its middle."""
    if width(text) <= room:
        return text
    head = text[: min(len(text) - len(text.lstrip()) + 4, room // 3)]
    left = room - width(head) - 1
    tail = text[-left:]
    while width(tail) > left:
        tail = tail[1:]
    return f"{head}…{tail}"


def shorten_text(text: str, room: int) -> str:
    """Shorten a text to `room` columns by removing its end."""
    if width(text) <= room:
        return text
    text = text[:room]
    while width(text) > room - 1:
        text = text[:-1]
    return text + "…"


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
    if room - taken < _LEAST_TEXT:
        indent = len(heads[0].text) - len(heads[0].text.lstrip()) + 4 if heads else 0
    lines = wrap_text(text, max(room - indent, _LEAST_TEXT), cuts_words=True)
    if indent != taken:
        return [[*heads], *([Cell(" " * indent), Cell(line, style)] for line in lines)]
    rest = [[Cell(" " * indent), Cell(line, style)] for line in lines[1:]]
    return [[*heads, Cell(lines[0] if lines else "", style)], *rest]
