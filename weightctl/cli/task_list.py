"""Describes the tasks that `weightctl tasks` lists, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.cli.costs import document_network
from weightctl.cli.render import Cell
from weightctl.text.sizes import format_size
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.write.executors.batches import Batch
    from weightctl.write.journal import Purpose
    from weightctl.write.outcome import Outcome


class TaskList(NamedTuple):
    """The tasks of a planned output, in batches, and the fingerprints of the plan and its input."""

    outcome: Outcome
    batches: Sequence[Batch]
    purpose: Purpose
    task_size: int
    bandwidth: int


def list_rows(found: TaskList) -> Iterator[Sequence[Cell]]:
    """Yield the rows of the table of tasks, with a heading."""
    heads = ("file", "task", "read", "written", "expected")
    yield [Cell(text, "bold", right=bool(place)) for place, text in enumerate(heads)]
    for number, batch in enumerate(found.batches):
        yield [
            Cell(_name_file(found, batch)),
            Cell(str(number), right=True),
            Cell(format_size(batch.read), right=True),
            Cell(format_size(batch.made), right=True),
            Cell(_format_seconds(batch.estimate_seconds(found.bandwidth)), "dim", right=True),
        ]


def _name_file(found: TaskList, batch: Batch) -> str:
    """Return the name of the first file that a task writes to."""
    return [*found.outcome.parts][batch.tasks[0].place[0]]


def summarize(found: TaskList) -> list[list[Cell]]:
    """Return the lines below the table: numbers, sizes and expected times."""
    batches = found.batches
    seconds = [batch.estimate_seconds(found.bandwidth) for batch in batches]
    read, made = sum(batch.read for batch in batches), sum(batch.made for batch in batches)
    total = _format_seconds(sum(seconds))
    longest = _format_seconds(max(seconds, default=0.0))
    largest = format_size(max((batch.cost for batch in batches), default=0))
    return [
        [],
        [Cell(f"{pluralize(len(batches), 'task')}; the largest has {largest}")],
        [Cell(f"{format_size(read)} to read, {format_size(made)} to write")],
        [Cell(f"{total} expected on one core, at most {longest} for a task")],
    ]


def _format_seconds(seconds: float) -> str:
    """Return a time with a unit: `0.3 ms`, `3.2 s`, `14.0 min`, `2.5 h`."""
    units = ((3600, "h"), (60, "min"), (1, "s"))
    size, unit = next((each for each in units if seconds >= each[0]), (1e-3, "ms"))
    return f"{seconds / size:.1f} {unit}"


def document(path: str, found: TaskList) -> dict[str, Any]:
    """Return the tasks as JSON, according to `schemas/tasks.json` in the package."""
    batches = found.batches
    listed = [
        {
            "task": number,
            "file": _name_file(found, batch),
            "read_bytes": batch.read,
            "written_bytes": batch.made,
            "seconds": batch.estimate_seconds(found.bandwidth),
        }
        for number, batch in enumerate(batches)
    ]
    return {
        "input": path,
        "output": found.outcome.where.path,
        "format": found.outcome.where.format,
        "plan": found.purpose.plan,
        "fingerprint": found.purpose.input,
        "task_size": found.task_size,
        "bandwidth": found.bandwidth,
        "read_bytes": sum(batch.read for batch in batches),
        "written_bytes": sum(batch.made for batch in batches),
        "seconds": sum(batch.estimate_seconds(found.bandwidth) for batch in batches),
        "tasks": listed,
        **document_network(),
    }
