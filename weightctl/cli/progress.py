"""A bar that shows how far a conversion is, how fast, and how long it still takes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["progress_bar"]


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
