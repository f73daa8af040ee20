"""A bar that shows how far a piece of work is, how fast it goes, and how long it still takes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from weightctl.wording import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["progress_bar", "stages_bar"]


@contextmanager
def progress_bar(total: int) -> Generator[Callable[[int], object], None, None]:
    """Show a bar on stderr; yields what to call with each number of bytes that is done."""
    columns = (
        TaskProgressColumn(),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda nbytes: progress.advance(task, nbytes)


@contextmanager
def stages_bar() -> Generator[Callable[[str, float], object], None, None]:
    """Show a bar on stderr; yields what to call with what is done, and its share, 0 to 1."""
    # Names of tensors may have brackets, which would be markup.
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("opening", total=1.0)
        yield lambda doing, done: progress.update(
            task, description=printable(doing), completed=done
        )
