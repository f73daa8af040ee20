"""Runs batches of tasks in a worker, which makes the plan from the headers.

The files are those of the run that sends the batches. Only names, numbers and records are exchanged
between the two, and no bytes of tensors.
"""

from __future__ import annotations

import hashlib
import os
import time
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError, FormatError
from weightctl.storage.location import absolute, without_file_scheme
from weightctl.system import __version__
from weightctl.write.outcome import identify_run
from weightctl.write.targets import Target
from weightctl.write.threads import StoppedError, run_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from threading import Event

    from weightctl.plan.plan import Plan
    from weightctl.sharding.plan import ShardPlan
    from weightctl.write.executors.destinations import Delivered, OpenPlace, Place
    from weightctl.write.journal import Purpose, Record
    from weightctl.write.outcome import Outcome
    from weightctl.write.tasks import Work

# Arguments that do not change the bytes of the output.
_OF_THE_RUN = {"dry_run", "force", "memory", "on", "progress", "task_size", "threads"}
# Arguments that are a path, and those that may be one.
_ALWAYS_PATHS = {
    "base", "config", "imatrix", "mmproj", "out", "path", "source", "tokenizer",
}  # fmt: skip
_PATHS = _ALWAYS_PATHS | {"quant", "rename", "rules"}

_GOLDEN_ROWS = 2
_GOLDEN_COLUMNS = 1024


class PlannedWork(NamedTuple):
    """A plan, its outcome, its work, and the digest of this machine's results of its codecs."""

    plan: Plan | ShardPlan
    outcome: Outcome
    work: Work
    codecs: str = ""


class PlannedOutput(Protocol):
    """The result of `gathering`, and of `convert` and `shard` in a dry run."""

    def make_work(self, *, threads: int, memory: int) -> PlannedWork:
        """Return the work that writes the output."""
        ...


class PlanRequest(NamedTuple):
    """A function such as `convert` and its arguments, from which each worker makes the plan.

    `families` are the files of families that were added.
    """

    function: Callable[..., PlannedOutput]
    arguments: Mapping[str, Any]
    families: Sequence[str]

    @classmethod
    def of(cls, function: Callable[..., PlannedOutput], given: Mapping[str, Any]) -> Self | None:
        """Return the request with absolute paths; None if the source or an adapter is not one.

        `given` has all arguments of the function. Arguments that do not change the plan are left
        out.
        """
        if not isinstance(given.get("source", ""), str | os.PathLike):
            return None
        arguments = {name: each for name, each in given.items() if name not in _OF_THE_RUN}
        if "dry_run" in given:
            arguments["dry_run"] = True
        if adapters := given.get("adapters"):
            from weightctl.adapters.reading import parse_adapter

            parsed = list(map(parse_adapter, adapters))
            named = [(absolute(path), weight) for path, weight in parsed if isinstance(path, str)]
            if len(named) < len(parsed):
                return None
            arguments["adapters"] = named
        for name in _PATHS & arguments.keys():
            value = arguments[name]
            if isinstance(value, Target):
                arguments[name] = value._replace(path=absolute(value.path))
            elif isinstance(value, str | os.PathLike):
                path: str = os.fspath(value)
                if name in _ALWAYS_PATHS or os.path.isfile(without_file_scheme(path)):
                    arguments[name] = absolute(path)
        # Runs that are not distributed do not need them.
        from weightctl.families import FAMILIES
        from weightctl.families.towers import TOWERS

        # A worker finds the families of installed packages itself, of which some have no file.
        lines = (line for line in FAMILIES.values() if line.family is not None)
        added = [line.source for line in lines if os.path.isfile(line.source)]
        added += [str(line.source) for line in TOWERS.values() if line.tower is not None]
        return cls(function, arguments, added)

    def make_work(self, *, threads: int, memory: int) -> PlannedWork:
        """Make the plan from the headers of the source; raises the errors of planning."""
        for path in self.families:
            from weightctl.families.added import add_family  # most runs have none

            add_family(path)
        planned = self.function(**self.arguments)
        return planned.make_work(threads=threads, memory=memory)


class Job(NamedTuple):
    """The data that all workers of a run need.

    `place` is the place that they write to. `version` is weightctl's version and `codecs` the
    digest of the codecs' results, both on the machine that started the run: a worker with other
    values would write other bytes. If `is_local` is set, all workers are on this machine, and the
    run itself waits for the disk.
    """

    token: str
    request: PlanRequest
    purpose: Purpose
    place: Place
    version: str
    codecs: str
    threads: int
    memory: int
    is_local: bool


class BatchResult(NamedTuple):
    """The records of a batch, the parts that it has sent to a store, and its time in seconds."""

    records: list[Record]
    delivered: Delivered
    seconds: float


class _Prepared(NamedTuple):
    token: str
    planned: PlannedWork
    place: OpenPlace


# The plan of the job that this process works on, which is reused: planning can take many seconds.
_PREPARED: list[_Prepared] = []
_LOCK = Lock()


def run_batch(job: Job, number: int, keys: Sequence[Any]) -> BatchResult:
    """Carry out batch `number` of a job, the tasks with these keys.

    Afterwards, its bytes are on the disk, or in the store, or, on this machine, in the page cache.
    Raises the errors of the work, and `ConversionError` if this worker would write other bytes.
    """
    # An executor of threads runs several batches at a time; they share the plan.
    with _LOCK:
        _, planned, place = _prepare(job)
        return do_batch(planned, place, job, number, keys)


def do_batch(
    planned: PlannedWork, place: OpenPlace, job: Job, number: int, keys: Sequence[Any]
) -> BatchResult:
    """Carry out batch `number` in open files; raises the errors of the work."""
    started = time.monotonic()
    tasks = planned.work.assign(keys)
    records: list[Record] = []

    def do(task: Any, ended: Event) -> None:
        def report(_: int) -> None:
            if ended.is_set():
                raise StoppedError

        records.extend(planned.work.do(task, place.files, report))

    try:
        run_all(do, tasks, threads=job.threads)
        planned.plan.source.refuse_change()
        files = {record.file for record in records}
        delivered = place.deliver(f"{job.token}-{number}", files, is_local=job.is_local)
    except BaseException:
        place.drop()
        raise
    return BatchResult(records, delivered, time.monotonic() - started)


def release(job: Job) -> None:
    """Close the files that this process has opened for a job."""
    with _LOCK:
        if _PREPARED and _PREPARED[0].token == job.token:
            _close_prepared()


def _close_prepared() -> None:
    while _PREPARED:
        _PREPARED.pop().place.close()


def _prepare(job: Job) -> _Prepared:
    if _PREPARED and _PREPARED[0].token == job.token:
        return _PREPARED[0]
    _close_prepared()
    if job.version != __version__:
        raise ConversionError(
            f"a worker has weightctl {__version__}, but weightctl {job.version} started the run",
            hint="install the same version on all machines",
        )
    planned = job.request.make_work(threads=job.threads, memory=job.memory)
    _refuse_other(job, planned)
    layouts = list(planned.outcome.parts.values())
    place = job.place.open(planned.plan, layouts, memory=job.memory)
    _PREPARED.append(_Prepared(job.token, planned, place))
    return _PREPARED[0]


def _refuse_other(job: Job, planned: PlannedWork) -> None:
    purpose = identify_run(planned.plan, planned.outcome)
    if purpose.input != job.purpose.input:
        raise FormatError(
            planned.plan.source.files[0].path,
            None,
            "the input that a worker reads differs from the input that was planned",
            hint="use a path that has the same files on all machines, and do not change them",
        )
    if purpose.plan != job.purpose.plan or planned.codecs != job.codecs:
        raise ConversionError(
            "a worker would not write the same bytes as this machine",
            hint="install the same versions of weightctl and its dependencies on all machines",
        )


def digest_codecs(plan: Plan) -> str:
    """Return the SHA-256 of fixed values that this machine's codecs encode in a plan's types."""
    converted = [item for item in plan.items if not item.is_copy]
    if not converted:
        return ""
    import numpy as np

    from weightctl.codecs import transcode
    from weightctl.codecs.definitions import can_encode

    encodings = {each for item in converted for each in (item.source.encoding, item.info.encoding)}
    plain = ENCODINGS["F32"]
    values = np.random.default_rng(1).standard_normal((_GOLDEN_ROWS, _GOLDEN_COLUMNS), np.float32)
    found = hashlib.sha256()
    for encoding in sorted(encodings, key=lambda each: each.name):
        if not encoding.is_real or not can_encode(encoding):
            continue
        weights = np.ones(_GOLDEN_COLUMNS, np.float32) if encoding.needs_importance else None
        made = transcode(values.view(np.uint8), plain, encoding, weights).raw
        found.update(made.tobytes() + transcode(made, encoding, plain).raw.tobytes())
    return found.hexdigest()
