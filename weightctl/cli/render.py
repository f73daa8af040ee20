"""Lines and columns of text for the terminal, with colors if it supports them; notes and errors."""

from __future__ import annotations

import json
import os
import sys
import warnings
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from weightctl.cli.progress import erase_phase
from weightctl.errors import OutputError, SourceWarning, WeightctlError
from weightctl.text.columns import Cell, hung, in_columns, shape_text, width, wrap_text
from weightctl.text.wording import list_ranges, printable

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from typing import TextIO

    from weightctl.split import Sharding
    from weightctl.weights.info import Header

# The fewest columns for a line of a message.
_LEAST = 24
# Of more shapes of shards than this, a narrow terminal shows the first ones.
_MOST_SHAPES = 2
_ANSI = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}


def show_table(rows: Iterable[Sequence[Cell]]) -> None:
    """Print rows in columns; on a terminal, the first column is shortened so that lines fit."""
    show_lines(in_columns(rows, columns() if is_terminal() else None))


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return bool(sys.stdout) and sys.stdout.isatty()


def columns() -> int:
    """Return the number of columns of the terminal."""
    import shutil

    return shutil.get_terminal_size().columns


def show_lines(lines: Iterable[Sequence[Cell]]) -> None:
    """Print lines to stdout; on a terminal in color, unless the environment disables colors."""
    show_text(format_lines(lines))


def show_sentences(lines: Iterable[Sequence[Cell]]) -> None:
    """Print lines to stdout; on a terminal, sentences that do not fit continue on the next line."""
    room = columns() if is_terminal() else None
    for line in lines:
        is_long = room is not None and len(line) == 1 and width(line[0].text) > room
        show_lines(hung([], line[0].text, room, line[0].style) if is_long else [line])


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
