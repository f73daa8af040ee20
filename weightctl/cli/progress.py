"""Shows progress on stderr if it is a terminal: bars, and a line that names the current phase."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import deque
from contextlib import contextmanager, nullcontext, suppress
from threading import Lock, Timer
from typing import TYPE_CHECKING

from weightctl.storage.traffic import TRAFFIC
from weightctl.system.phases import listening
from weightctl.text.sizes import format_size
from weightctl.text.wording import pluralize, printable
from weightctl.write.executors import WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    from rich.progress import Progress, ProgressColumn, Task
    from rich.table import Column

    from weightctl.write.executors import WorkerCounts

    _Bar = AbstractContextManager[Callable[[int], object] | None]

# Work on fewer bytes is so fast that it has no progress bar.
LONG = 100_000_000
# Commands that take fewer seconds than this, from the start of the process, do not show a phase.
_DELAY = 0.3
_BETWEEN = 0.1
# The seconds over which the rate of the network is averaged.
_AVERAGED = 3.0
# Narrower terminals leave out the amount of data if the bar shows workers.
_WIDTH_OF_ALL = 80
_ERASE = "\x1b[2K\r"


def progress_bar(
    total: int,
    doing: str,
    *,
    quiet: bool,
    input_bytes: int | None = None,
    has_workers: bool = False,
) -> _Bar:
    """Show a progress bar for `total` bytes of work, with what is done and the time that is left.

    The bar counts `input_bytes`, in proportion, if given. The context yields a function to call
    with each number of bytes that are done, or None if no bar is shown. If `has_workers` is set,
    the bar shows the tasks that workers have done and lost instead of the network traffic, since
    the requests of workers are not counted in this process.
    """
    erase_phase()
    if not _is_wanted(quiet=quiet):
        return nullcontext()
    counted = total if input_bytes is None else input_bytes
    return _bytes_bar(total, doing, counted, has_workers=has_workers)


def long_bar(total: int, doing: str, *, quiet: bool) -> _Bar:
    """Show a progress bar as `progress_bar` does, unless so few bytes take hardly any time."""
    return progress_bar(total, doing, quiet=quiet or total < LONG)


def stages_bar(*, quiet: bool) -> AbstractContextManager[Callable[[str, float], object] | None]:
    """Show a progress bar with the name of the current stage.

    The context yields a function to call with the stage and the fraction done, from 0 to 1, or None
    if no bar is shown.
    """
    erase_phase()
    return _stages_bar() if _is_wanted(quiet=quiet) else nullcontext()


def _is_wanted(*, quiet: bool) -> bool:
    is_shown = not quiet and bool(sys.stderr) and sys.stderr.isatty()
    return is_shown and os.environ.get("TERM") != "dumb"  # such terminals cannot erase a line


@contextmanager
def _bytes_bar(
    total: int, doing: str, counted: int, *, has_workers: bool
) -> Generator[Callable[[int], object], None, None]:
    # rich is only imported if a bar is shown.
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TaskProgressColumn,
        TextColumn,
        TransferSpeedColumn,
    )
    from rich.table import Column

    # On a narrow terminal only the bar gets shorter; the other columns are not wrapped.
    whole = Column(no_wrap=True)
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}", table_column=whole),
        TaskProgressColumn(table_column=whole),
        BarColumn(),
        DownloadColumn(table_column=whole),
        TransferSpeedColumn(table_column=whole),
        _make_time_left(whole),
    ]
    if has_workers:
        # Their tasks take the room of what is done, and on a narrow terminal of the bytes.
        is_narrow = shutil.get_terminal_size().columns < _WIDTH_OF_ALL
        columns = [*columns[1:3], *columns[4 if is_narrow else 3 : -1], _make_time_left(whole, "")]
        columns.append(_make_column(whole, _count_tasks))
    elif TRAFFIC.counts.requests:
        columns.append(_make_column(whole, _NetworkRate().describe))
    # Phases are not shown, because a bar is.
    with listening(lambda _: None), _progress(*columns) as progress:
        task = progress.add_task(doing, total=counted)
        share = counted / total if total else 1
        yield lambda nbytes: progress.advance(task, nbytes * share)


@contextmanager
def _stages_bar() -> Generator[Callable[[str, float], object], None, None]:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.table import Column

    # Names of tensors may have brackets, which rich would take for markup.
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        _make_time_left(Column(no_wrap=True)),
    )
    with _progress(*columns) as progress:
        task = progress.add_task("opening", total=1.0)

        def describe(text: str) -> None:
            progress.update(task, description=printable(text))

        with listening(describe):
            yield lambda doing, done: progress.update(
                task, description=printable(doing), completed=done
            )


def _make_time_left(column: Column, unit: str = " left") -> ProgressColumn:
    """Return a column that shows the time left, such as `0:00:39 left`."""
    from rich.progress import TimeRemainingColumn
    from rich.text import Text

    class _TimeLeft(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            return Text.assemble(super().render(task), unit)

    return _TimeLeft(table_column=column)


def _make_column(column: Column, describe: Callable[[], str]) -> ProgressColumn:
    """Return a column that shows a text, which is made again each time that it is drawn."""
    from rich.progress import ProgressColumn
    from rich.text import Text

    class _TextOfNow(ProgressColumn):
        def render(self, task: Task) -> Text:
            del task
            return Text(describe(), style="cyan")

    return _TextOfNow(table_column=column)


def _count_tasks() -> str:
    """Return how many tasks workers have done, lost and copied, for the bar."""
    counts = WORKERS.counts
    parts = [f"{counts.done:,}/{counts.tasks:,} tasks"]
    parts += [f"{counts.lost:,} lost"] if counts.lost else []
    parts += [f"{counts.copies:,} copied"] if counts.copies else []
    return ", ".join(parts)


def describe_workers(counts: WorkerCounts) -> str:
    """Describe how many tasks are done, lost and copied."""
    parts = [f"{counts.done:,} of {pluralize(counts.tasks, 'task')}"]
    parts += [f"{counts.lost:,} lost with their workers"] if counts.lost else []
    parts += [f"{counts.copies:,} given to a second worker"] if counts.copies else []
    return ", ".join(parts)


class _NetworkRate:
    """The rate at which bytes are received and sent, averaged over some seconds."""

    def __init__(self) -> None:
        self._seen = deque([(time.monotonic(), self._count_bytes())])

    @staticmethod
    def _count_bytes() -> int:
        counts = TRAFFIC.counts
        return counts.bytes_read + counts.bytes_sent

    def describe(self) -> str:
        """Return the rate as text, for the bar."""
        now, nbytes = time.monotonic(), self._count_bytes()
        self._seen.append((now, nbytes))
        while len(self._seen) > 2 and now - self._seen[1][0] > _AVERAGED:
            self._seen.popleft()
        before, had = self._seen[0]
        rate = int((nbytes - had) / max(now - before, 0.1))
        return f"network {format_size(rate)}/s"


def _progress(*columns: ProgressColumn) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True), transient=True)


class _PhaseLine:
    """The line that names the current phase; it appears after a delay."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._text = ""
        self._written = 0.0
        # Until here, the process has only loaded modules, without waiting for anything.
        self._timer = Timer(max(_DELAY - time.process_time(), 0.0), self._appear)
        self._timer.daemon = True
        self._is_due = self._is_shown = False

    def begin(self, text: str) -> None:
        with self._lock:
            if not self._text and not self._is_due:
                self._timer.start()
            self._text = text
            if self._is_due and time.monotonic() - self._written > _BETWEEN:
                self._write()

    def erase(self) -> None:
        """Remove the line until the next phase begins."""
        with self._lock:
            if self._is_shown:
                _write_to_terminal(_ERASE)
            self._is_shown = False
            self._text = self._text and " "

    def end(self) -> None:
        self._timer.cancel()
        self.erase()

    def _appear(self) -> None:
        with self._lock:
            self._is_due = True
            if self._text.strip():
                self._write()

    def _write(self) -> None:
        room = shutil.get_terminal_size().columns - 4
        _write_to_terminal(f"{_ERASE}{printable(self._text)[:room]}...")
        self._written = time.monotonic()
        self._is_shown = True


def _write_to_terminal(text: str) -> None:
    with suppress(OSError):  # stderr may be closed
        sys.stderr.write(text)
        sys.stderr.flush()


class _Shown:
    """Holds the phase line of the command that is running."""

    line: _PhaseLine | None = None


@contextmanager
def phase_line(*, quiet: bool) -> Generator[None, None, None]:
    """Show the current phase of long work within this context, until other output is shown."""
    if not _is_wanted(quiet=quiet):
        yield
        return
    line = _Shown.line = _PhaseLine()
    line.begin("starting")
    try:
        with listening(line.begin):
            yield
    finally:
        line.end()
        _Shown.line = None


def erase_phase() -> None:
    """Remove the line that names the phase; call this before other output to the terminal."""
    if _Shown.line is not None:
        _Shown.line.erase()
