"""`weightctl tasks`: the tasks of a conversion or of shards, for other schedulers."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from weightctl.cli.conversion import BUDGET_OPTIONS, plan_conversion
from weightctl.cli.convert import convert
from weightctl.cli.costs import show_document
from weightctl.cli.render import show_lines, show_notes, show_table
from weightctl.cli.shard import plan_shards, shard
from weightctl.errors import ConversionError
from weightctl.text.columns import Cell
from weightctl.text.documents import NOT_DOCUMENTED
from weightctl.text.sizes import format_size, parse_size
from weightctl.text.wording import pluralize
from weightctl.write.conversion_tasks import DEFAULT_MEMORY
from weightctl.write.executors.distribution import cut_batches, list_keyed_tasks, plan_distribution
from weightctl.write.gathering import gathering
from weightctl.write.outcome import identify_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from typer.models import OptionInfo

    from weightctl.write.conversion import Conversion
    from weightctl.write.gathering import Gathering
    from weightctl.write.shard import ShardedOutput

_AXES = ("tensor", "experts", "stages")
_OF_SHARDS = (*_AXES, "rules", "layout", "gather")
# Options without an effect on tasks. They are accepted, so that it is enough to replace the name of
# a command by `tasks`.
_WITHOUT_EFFECT = {
    "private", "pr", "force", "dry_run", "threads", "memory", "on", "report", "attest", "key",
}  # fmt: skip
_OF_OUT = "the tasks are those of OUT; to list those of the mmproj file, leave out OUT"
_GENERAL = {
    "path", "out", "task_size", "bandwidth", "as_json", "quiet", "anonymous", *_WITHOUT_EFFECT,
}  # fmt: skip

app = typer.Typer(add_completion=False)


def _list_parameters() -> Iterator[Parameter]:
    """Yield the parameters of `convert`, those that only `shard` has, and `--bandwidth`.

    Those of budgets are left out: a search runs the model, and tasks are known from headers.
    """
    for function, names in ((convert, None), (shard, _OF_SHARDS)):
        hints = get_type_hints(function, include_extras=True)
        for name, parameter in signature(function).parameters.items():
            if name in names if names else name not in BUDGET_OPTIONS:
                yield parameter.replace(annotation=_change(name, hints[name]))
    yield Parameter("bandwidth", Parameter.KEYWORD_ONLY, default="1GB", annotation=str)


def _change(name: str, annotation: Any) -> Any:
    """Return the annotation of a parameter; options without an effect are hidden."""
    if name not in _WITHOUT_EFFECT:
        return annotation
    kind, option = _split_annotation(annotation)
    changed = copy(option)
    changed.hidden = True
    return Annotated[kind, changed]


def _split_annotation(annotation: Any) -> tuple[Any, OptionInfo]:
    """Return the type of a parameter, and what Typer needs to know of the option."""
    if get_origin(annotation) is not Annotated:
        return annotation, typer.Option()
    kind, option = get_args(annotation)
    return kind, option


def tasks(**given: Any) -> None:
    """List the tasks into which a conversion or sharding is divided, with their expected times.

    Use this before a run with --on, to choose the number of workers and their time limits. Take the
    `convert` or `shard` command that you want to run, and replace its name with `tasks`. With --tp,
    --ep, --pp or --gather, the tasks are those of `weightctl shard`. Only headers are read, and
    nothing is written.

    The expected time is for one core. It is the time to read and write at --bandwidth, plus the
    time to encode the values (or, for shards, to compute SHA-256), at speeds measured on an AMD
    EPYC.
    """
    planned = _plan(given)
    beside = [_OF_OUT] if getattr(planned, "beside", None) is not None else []
    show_notes([*getattr(planned, "notes", ()), *beside], quiet=given["quiet"])
    found = _list_tasks(planned, given)
    if given["as_json"]:
        show_document(found)
        return
    show_table(list_rows(found))
    if not given["quiet"]:
        show_lines(summarize(found))


# Typer reads the parameters of a function from its signature, an attribute that mypy does not know.
tasks.__signature__ = Signature([*_list_parameters()])  # type: ignore[attr-defined]  # see above
tasks.__annotations__ = {each.name: each.annotation for each in _list_parameters()}
app.command()(tasks)


def _plan(given: Mapping[str, Any]) -> Conversion | ShardedOutput | Gathering:
    """Return the plan that the options ask for.

    Raises `ConversionError` if options contradict each other or have no effect together.
    """
    is_gathering = given["gather"]
    is_sharding = any(given[name] is not None for name in _AXES)
    if is_gathering:
        _refuse(given, {"gather", "to"}, "--gather reads from the manifest how tensors are split")
        return gathering(given["path"], given["out"], given["to"])
    if given["tensor"] == "auto":
        raise ConversionError(
            "--tp auto writes nothing, so it has no tasks",
            hint="use a number: `weightctl shard MODEL --tp auto` lists which numbers work",
        )
    if is_sharding:
        known = {*_OF_SHARDS, "to", "source_format"}
        _refuse(given, known, "with --tp, --ep or --pp, values are copied into shards unchanged")
        return plan_shards(given)
    known = given.keys() - set(_OF_SHARDS)
    _refuse(given, known, "without --tp, --ep or --pp, the tasks are those of a conversion")
    return plan_conversion(given)[0]


def _refuse(given: Mapping[str, Any], known: set[str], why: str) -> None:
    """Raise `ConversionError` if an option is given that is not in `known`; `why` is the reason."""
    for parameter in _list_parameters():
        name = parameter.name
        if name in _GENERAL or name in known or given[name] == parameter.default:
            continue
        _, option = _split_annotation(parameter.annotation)
        # An option without explicit names has the name that Typer derives from the parameter.
        named = [option.default, *(option.param_decls or ())]
        names = [each for each in named if isinstance(each, str) and each.startswith("--")]
        shown = names[0] if names else f"--{name.replace('_', '-')}"
        raise ConversionError(why, hint=f"remove {shown}")


def _list_tasks(
    planned: Conversion | ShardedOutput | Gathering, given: Mapping[str, Any]
) -> TaskList:
    """Return the tasks that workers would get; raises the errors of a run with workers."""
    outcome = planned.outcome
    distribution = plan_distribution(
        "processes:1",
        planned.request,
        outcome.where,
        threads=1,
        memory=DEFAULT_MEMORY,
        task_size=given["task_size"],
    )
    bandwidth = parse_size(given["bandwidth"])
    if bandwidth < 1:
        raise ConversionError(
            f"a worker cannot read {given['bandwidth']} per second",
            hint="write a size such as 1GB",
        )
    work = planned.make_work(threads=1, memory=DEFAULT_MEMORY)
    purpose = identify_run(work.plan, outcome)
    files = [*outcome.parts]
    batches = cut_batches(list_keyed_tasks(work.work), distribution.task_size)
    tasks = [
        ListedTask(number, files[batch.tasks[0].place[0]], batch.read, batch.made,
                   batch.estimate_seconds(bandwidth), batch.cost)
        for number, batch in enumerate(batches)
    ]  # fmt: skip
    return TaskList(
        given["path"],
        outcome.where.path,
        outcome.where.format,
        purpose.plan,
        purpose.input,
        distribution.task_size,
        bandwidth,
        sum(each.read_bytes for each in tasks),
        sum(each.written_bytes for each in tasks),
        sum(each.seconds for each in tasks),
        tasks,
    )


# Describes the tasks that `weightctl tasks` lists. Their JSON follows `schemas/tasks.json`.


@dataclass(frozen=True, slots=True)
class ListedTask:
    """A task of a worker: the first file that it writes to, its sizes, and the expected time."""

    task: int
    file: str
    read_bytes: int
    written_bytes: int
    seconds: float
    cost: int = field(metadata=NOT_DOCUMENTED)


@dataclass(frozen=True, slots=True)
class TaskList:
    """The tasks of a planned output, and the fingerprints of the plan and its input."""

    input: str
    output: str
    format: str
    plan: str
    fingerprint: str
    task_size: int
    bandwidth: int
    read_bytes: int
    written_bytes: int
    seconds: float
    tasks: Sequence[ListedTask]


def list_rows(found: TaskList) -> Iterator[Sequence[Cell]]:
    """Yield the rows of the table of tasks, with a heading."""
    heads = ("file", "task", "read", "written", "expected")
    yield [Cell(text, "bold", right=bool(place)) for place, text in enumerate(heads)]
    for each in found.tasks:
        yield [
            Cell(each.file),
            Cell(str(each.task), right=True),
            Cell(format_size(each.read_bytes), right=True),
            Cell(format_size(each.written_bytes), right=True),
            Cell(_format_seconds(each.seconds), "dim", right=True),
        ]


def summarize(found: TaskList) -> list[list[Cell]]:
    """Return the lines below the table: numbers, sizes and expected times."""
    tasks = found.tasks
    total = _format_seconds(found.seconds)
    longest = _format_seconds(max((each.seconds for each in tasks), default=0.0))
    largest = format_size(max((each.cost for each in tasks), default=0))
    read, written = format_size(found.read_bytes), format_size(found.written_bytes)
    return [
        [],
        [Cell(f"{pluralize(len(tasks), 'task')}; the largest has {largest}")],
        [Cell(f"{read} to read, {written} to write")],
        [Cell(f"{total} expected on one core, at most {longest} for a task")],
    ]


def _format_seconds(seconds: float) -> str:
    """Return a time with a unit: `0.3 ms`, `3.2 s`, `14.0 min`, `2.5 h`."""
    units = ((3600, "h"), (60, "min"), (1, "s"))
    size, unit = next((each for each in units if seconds >= each[0]), (1e-3, "ms"))
    return f"{seconds / size:.1f} {unit}"
