"""A bar that shows how far a piece of work is, how fast it goes, and how long it still takes.

It stands on stderr, where that is a terminal and somebody wants to see it.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from weightctl.text.wording import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    from rich.progress import Progress, ProgressColumn

__all__ = ["progress_bar", "stages_bar"]


def progress_bar(
    total: int, *, quiet: bool
) -> AbstractContextManager[Callable[[int], object] | None]:
    """Show a bar; gives what to call with each number of bytes that is done, or None for no bar."""
    return _bytes_bar(total) if _is_wanted(quiet=quiet) else nullcontext()


def stages_bar(*, quiet: bool) -> AbstractContextManager[Callable[[str, float], object] | None]:
    """Show a bar; gives what to call with what is done, and its share, 0 to 1, or None."""
    return _stages_bar() if _is_wanted(quiet=quiet) else nullcontext()


def _is_wanted(*, quiet: bool) -> bool:
    return not quiet and bool(sys.stderr) and sys.stderr.isatty()


@contextmanager
def _bytes_bar(total: int) -> Generator[Callable[[int], object], None, None]:
    # rich is loaded where a bar is seen, and not for each listing.
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TaskProgressColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TaskProgressColumn(),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with _progress(*columns) as progress:
        task = progress.add_task("", total=total)
        yield lambda nbytes: progress.advance(task, nbytes)


@contextmanager
def _stages_bar() -> Generator[Callable[[str, float], object], None, None]:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    # Names of tensors may have brackets, which would be markup.
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with _progress(*columns) as progress:
        task = progress.add_task("opening", total=1.0)
        yield lambda doing, done: progress.update(
            task, description=printable(doing), completed=done
        )


def _progress(*columns: ProgressColumn) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True), transient=True)
