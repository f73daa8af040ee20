"""Lines and columns of text for the terminal, with colors if it supports them; notes and errors."""

from __future__ import annotations

import json
import os
import sys
import warnings
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from weightctl.cli.progress import erase_phase
from weightctl.errors import OutputError, SourceWarning, WeightctlError
from weightctl.text.columns import width, wrap_text
from weightctl.text.wording import list_ranges, printable

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from typing import TextIO

    from weightctl.split import Sharding
    from weightctl.weights.info import Header

_GAP = "  "
_LEAST = 24
# The fewest columns for a text that begins after others on its first line.
_LEAST_TEXT = 20
# Of more shapes of shards than this, a narrow terminal shows the first ones.
_MOST_SHAPES = 2
_ANSI = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}


class Cell(NamedTuple):
    """A text, its style (words of `_ANSI`), and whether it is aligned to the right.

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


def show_table(rows: Iterable[Sequence[Cell]]) -> None:
    """Print rows in columns; on a terminal, the first column is shortened so that lines fit."""
    show_lines(in_columns(rows, columns() if is_terminal() else None))


def in_columns(rows: Iterable[Sequence[Cell]], room: int | None) -> list[list[Cell]]:
    """Align rows in columns.

    If `room` is given, cells are shortened, and then the first column, so that lines fit into it.
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
    return [_align_cells(row, widths) for row in table]


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


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return bool(sys.stdout) and sys.stdout.isatty()


def columns() -> int:
    """Return the number of columns of the terminal."""
    import shutil

    return shutil.get_terminal_size().columns


def _align_cells(row: Sequence[Cell], widths: Sequence[int]) -> list[Cell]:
    cells: list[Cell] = []
    for cell, room in zip(row, widths, strict=False):
        if not room:
            continue
        text, style, right, _ = cell
        taken = width(text)
        if taken > room:
            text = shorten_name(text, room)
            taken = width(text)
        padding = " " * (room - taken)
        gap = _GAP if cells else ""
        cells.append(Cell(gap + (padding + text if right else text + padding), style))
    return cells


def shorten_name(name: str, room: int) -> str:
    """Shorten a tensor's name to `room` columns, and keep its numbers and ranges of numbers.

    Words are cut to their first letter, from the left, until the name fits. If it still does not
    fit, its middle is removed.
    """
    words = name.split(".")
    for place, word in enumerate(words[:-1]):
        if width(name) <= room:
            break
        if len(word) > 2 and not word.isdecimal() and not word.startswith("["):
            words[place] = word[: len(word) - len(word.lstrip()) + 1] + "…"
            name = ".".join(words)
    return without_middle(name, room)


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


def show_lines(lines: Iterable[Sequence[Cell]]) -> None:
    """Print lines to stdout; on a terminal in color, unless the environment disables colors."""
    show_text(format_lines(lines))


def format_lines(lines: Iterable[Sequence[Cell]]) -> str:
    """Return lines as text, with color codes if stdout supports them."""
    if _has_colors(sys.stdout):
        return "".join("".join(map(_color_text, line)).rstrip() + "\n" for line in lines)
    return "".join("".join(cell[0] for cell in line).rstrip() + "\n" for line in lines)


def set_colors(*, always: bool) -> None:
    """Let this process, and those that it starts, always use colors, or never."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        os.environ.pop(name, None)
    os.environ["FORCE_COLOR" if always else "NO_COLOR"] = "1"


def _has_colors(stream: TextIO) -> bool:
    """Whether a stream is written in color (https://no-color.org, https://force-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    is_terminal = bool(stream) and stream.isatty() and os.environ.get("TERM") != "dumb"
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal


def _color_text(cell: Cell) -> str:
    text = cell.text
    if not cell.style or text.isspace():
        return text
    start = len(text) - len(text.lstrip())
    end = len(text.rstrip())
    codes = ";".join(str(_ANSI[word]) for word in cell.style.split())
    return f"{text[:start]}\x1b[{codes}m{text[start:end]}\x1b[0m{text[end:]}"


def show_text(text: str) -> None:
    """Print to stdout; if its reader has closed it, do nothing.

    Raises `OutputError` if writing fails for another reason.
    """
    if not sys.stdout:  # it was closed before this process began
        return
    erase_phase()
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Otherwise Python would write again at exit and fail, which would change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise OutputError(f"stdout cannot be written: {error.strerror}") from error


def note(text: str) -> None:
    """Print a note on stderr."""
    _show_message(Cell("note: "), [text])


def show_notes(texts: Iterable[str], *, quiet: bool) -> None:
    """Print notes on stderr, unless `quiet` is set."""
    for text in () if quiet else texts:
        note(text)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    _show_message(Cell("warning: "), [text])


@contextmanager
def show_warnings() -> Generator[None, None, None]:
    """Print warnings about sources as other warnings of weightctl are printed."""

    def show(  # noqa: PLR0917  # the signature of the library
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, SourceWarning):
            warn(str(message))
        else:
            text = warnings.formatwarning(message, category, filename, lineno, line)
            (file or sys.stderr).write(text)

    with warnings.catch_warnings():
        warnings.simplefilter("always", SourceWarning)
        warnings.showwarning = show
        yield


def complain(error: WeightctlError | OSError, *, as_json: bool = False) -> None:
    """Print an error and its hint on stderr; with `as_json`, also as a JSON document on stdout."""
    path = error.filename if isinstance(error, OSError) else getattr(error, "path", None)
    if not isinstance(error, WeightctlError):
        error = WeightctlError(f"{error.filename or 'a file'}: {error.strerror or error}")
    # Line breaks of the message are kept; line breaks in names are escaped.
    _show_message(Cell("error: ", "red bold"), error.message.split("\n  "))
    if error.hint:
        _show_message(Cell("hint: ", "cyan"), [error.hint])
    if as_json:
        shown = path if isinstance(path, str) else None
        document = {"error": error.message, "hint": error.hint or None, "path": shown}
        with suppress(OutputError):  # stdout may be closed, which can be the error itself
            show_text(json.dumps(document) + "\n")


def _show_message(head: Cell, lines: Sequence[str]) -> None:
    """Print lines on stderr; on a terminal, they are wrapped between words."""
    if not sys.stderr:  # it was closed before this process began
        return
    erase_phase()
    room = _message_columns() if sys.stderr.isatty() else None
    shown: list[str] = []
    for number, line in enumerate(map(printable, lines)):
        indent = " " * len(head.text) if number == 0 else "    "
        first = "" if number == 0 else "  "
        wrapped = [line] if room is None else wrap_text(line, max(room - len(indent), _LEAST))
        shown.append(first + f"\n{indent}".join(wrapped))
    colored = _color_text(head) if _has_colors(sys.stderr) else head.text
    with suppress(OSError):  # stderr may be closed
        sys.stderr.write(colored + "\n".join(shown) + "\n")
        sys.stderr.flush()


def _message_columns() -> int:
    """Return the number of columns of the terminal on stderr, also if stdout is a pipe."""
    import shutil

    with suppress(OSError, ValueError):
        if not os.environ.get("COLUMNS"):
            return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    return shutil.get_terminal_size().columns


# How tensors are cut for several ranks.

# The shape of each rank's shard, None for a rank that does not have the tensor.
_Shapes = tuple[tuple[int, ...] | None, ...]


def split_cells(header: Header, name: str) -> tuple[Cell, ...]:
    """Return the cells that show how a tensor is cut: `rowwise 2x`, and the shards' shapes.

    There are none if the checkpoint is not sharded.
    """
    sharding = header.shardings.get(name)
    return () if sharding is None else _cells(header.tensors[name].shape, sharding)


# All layers are cut in the same way, so results are cached.
@lru_cache(maxsize=1024)
def _cells(whole: tuple[int, ...], sharding: Sharding) -> tuple[Cell, ...]:
    count = len({part for part in sharding.parts if part is not None})
    times = f" {count}x" if count > 1 else ""
    shapes = tuple(sharding.shape(whole, rank) for rank in range(len(sharding.parts)))
    strategy = strategy_name(sharding)
    return (
        Cell(strategy + times, "yellow", short=shorten_strategy(strategy) + times),
        rank_shapes(whole, shapes)._replace(short=""),
    )


def strategy_name(sharding: Sharding) -> str:
    """Return the name of a tensor's strategy; `whole` if a single rank has all of the tensor."""
    is_whole = [part for part in sharding.parts if part is not None] == [()]
    return "whole" if is_whole and sharding.strategy == "replicate" else sharding.strategy


def shorten_strategy(strategy: str) -> str:
    """Return the short name of a strategy, for narrow terminals."""
    return strategy.rpartition(", ")[2].replace("head_aware_columnwise", "head_aware")


def rank_shapes(whole: Sequence[int], shapes: _Shapes) -> Cell:
    """Return a cell with the shapes of the shards.

    The ranks are named if their shapes differ, or if some do not have the tensor.
    """
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for rank, shape in enumerate(shapes):
        if shape is not None:
            by_shape.setdefault(shape, []).append(rank)
    if list(by_shape.values()) == [list(range(len(shapes)))]:
        shape = next(iter(by_shape))
        return Cell("" if shape == tuple(whole) else shape_text(shape))
    texts = [f"{shape_text(shape)} on {join_ranks(ranks)}" for shape, ranks in by_shape.items()]
    if len(by_shape) == 1:
        return Cell(texts[0])
    rest = ["..."] if len(by_shape) > _MOST_SHAPES else []
    shown = [shape_text(shape) for shape in by_shape][:_MOST_SHAPES]
    return Cell("; ".join(texts), short=" / ".join([*shown, *rest]))


def join_ranks(ranks: Sequence[int]) -> str:
    """Return the numbers of ranks as text, with ranges: `0-3, 6`."""
    return ", ".join(list_ranges(ranks))
