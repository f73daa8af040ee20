"""What goes to the screen: columns of text, in colour where a terminal wants it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Cell", "is_terminal", "note", "printable", "show_lines", "show_table", "show_text"]

_GAP = "  "
_LEAST = 24


class Cell(NamedTuple):
    """A piece of text, how it looks (a rich style), and whether it stands right in its column."""

    text: str
    style: str = ""
    right: bool = False


def printable(text: str) -> str:
    """Return text in which nothing can move the cursor or change the terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )


def show_table(rows: Iterable[Sequence[Cell]]) -> None:
    """Print rows in columns; on a terminal the first column gives way so that lines fit."""
    table = [[cell._replace(text=printable(cell.text)) for cell in row] for row in rows]
    count = max((len(row) for row in table), default=0)
    widths = [
        max((len(row[column].text) for row in table if column < len(row)), default=0)
        for column in range(count)
    ]
    if widths and is_terminal():
        others = sum(widths[1:]) + len(_GAP) * (count - 1)
        widths[0] = min(widths[0], max(_columns() - others, _LEAST))
    show_lines(_aligned(row, widths) for row in table)


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return bool(sys.stdout) and sys.stdout.isatty()


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns


def _aligned(row: Sequence[Cell], widths: Sequence[int]) -> list[Cell]:
    cells: list[Cell] = []
    for number, (cell, width) in enumerate(zip(row, widths, strict=False)):
        text = _shortened(cell.text, width)
        padded = text.rjust(width) if cell.right else text.ljust(width)
        cells.append(Cell((_GAP if number else "") + padded, cell.style))
    return cells


def _shortened(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    # The end of a name says more than its middle.
    head = len(text) - len(text.lstrip()) + 4
    return text[:head] + "…" + text[len(text) - (width - head - 1) :]


def show_lines(lines: Iterable[Sequence[Cell]]) -> None:
    """Print lines to stdout, in colour on a terminal that has not been told otherwise."""
    if is_terminal() and "NO_COLOR" not in os.environ:
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False, soft_wrap=True)
        for line in lines:
            console.print(Text.assemble(*((cell.text, cell.style) for cell in line)))
        return
    show_text("".join("".join(cell.text for cell in line).rstrip() + "\n" for line in lines))


def show_text(text: str) -> None:
    """Print to stdout; when its reader has seen enough, that is the end, and no error.

    Raises `OutputError` where stdout takes nothing.
    """
    if not sys.stdout:  # it was closed before this process began
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would try again, and complain, when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        raise OutputError(f"stdout cannot be written: {error.strerror}") from error


def note(text: str) -> None:
    """Tell a person something on stderr."""
    if sys.stderr:
        sys.stderr.write(f"note: {printable(text)}\n")
