"""Writes plans into files, a directory, or a pipe; `write_output` is the one writer."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial as bind
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from weightctl.errors import FormatError, OutputError, WeightctlError
from weightctl.formats.base import write_in_order
from weightctl.formats.huggingface import carry, write_beside
from weightctl.plan.plan import Plan
from weightctl.storage.base import cannot_write
from weightctl.storage.pipe import PipeWriter
from weightctl.system.threads import thread_count
from weightctl.text.sizes import format_size
from weightctl.write.conversion_tasks import (
    ConversionWork,
    add_loss,
    count_threads,
    memory_budget,
)
from weightctl.write.describe import describe, identify_run
from weightctl.write.journal import Recorder
from weightctl.write.partial import hold_output
from weightctl.write.targets import STDOUT, Target, stream_name, target
from weightctl.write.tasks import cut_tasks
from weightctl.write.threads import StoppedError, run_all, run_in_order

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from threading import Event

    from weightctl.codecs.loss import Loss
    from weightctl.sharding.plan import ShardPlan
    from weightctl.storage.base import Bytes, Writer
    from weightctl.storage.byte_range import FileRange
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.protocol import Weights
    from weightctl.weights.source import Source
    from weightctl.write.conversion_tasks import Filled
    from weightctl.write.journal import Record
    from weightctl.write.outcome import Outcome
    from weightctl.write.partial import Partial

__all__ = ["Saved", "Work", "Written", "open_stream", "save", "write_output"]

# Conversions that cannot be, and faults of the program.
_FINAL = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_CONTINUES = "the same command continues where this one stopped"
# A pipe takes chunks in their order, so each is a task by itself.
_STREAMED = 2 << 20


class Saved(NamedTuple):
    """The result of a save: the files, the seconds taken, and the rounding errors by tensor.

    `kept_bytes` are the bytes of tensors that a stopped run had already written. `started_over` is
    the reason why the files of a stopped run were not continued; it is empty if they were
    continued, or if there were none.
    """

    outcome: Outcome
    seconds: float
    losses: Mapping[str, Loss]
    kept_bytes: int = 0
    started_over: str = ""

    def __repr__(self) -> str:
        path, size = self.outcome.where.path, format_size(self.outcome.nbytes)
        return f"<Saved {path}: {size} in {self.seconds:.1f} s>"

    @property
    def paths(self) -> list[str]:
        """The paths of the checkpoint's files; the index, or the first part, is the first."""
        return self.outcome.files

    @property
    def nbytes(self) -> int:
        """The bytes of the checkpoint's files."""
        return self.outcome.nbytes

    @property
    def written_bytes(self) -> int:
        """The bytes of tensors that this run has written."""
        return self.outcome.tensor_bytes - self.kept_bytes


def save(
    plan: Plan | Weights | Mapping[str, Any],
    where: Target | str | os.PathLike[str],
    *,
    force: bool = False,
    threads: int | None = None,
    memory: int | str | None = None,
    progress: Callable[[int], object] | None = None,
) -> Saved:
    """Write a plan; the target is then the complete output, or is unchanged after an error.

    A tree of weights, or arrays by name such as a module's or torch's `state_dict()`, are stored
    unchanged, in the format that the target selects. `where` is a `Target`, or a path that selects
    the format of the plan. `threads` work at the same time, by default one for each core, within
    `memory` bytes, which can be text such as "512MiB"; neither changes the output. `progress` is
    called with the number of bytes of each chunk written, by one thread at a time.

    A run that is stopped by Ctrl-C, by kill -9, or by an error of the disk or the source leaves its
    temporary files and a journal. The same plan for the same input continues it. Nothing is left
    after an error that the same plan would repeat, or if the run took less than a second. Raises as
    `describe` and `Outcome.refuse` do, before anything is written, and `FormatError` if the source
    cannot be read, or changes during the run.
    """
    started = time.monotonic()
    budget, count = memory_budget(memory), thread_count(threads)
    if not isinstance(where, Target):
        where = target(os.fspath(where), plan.format if isinstance(plan, Plan) else None)
    if not isinstance(plan, Plan):
        plan = Plan.copy(plan, where.format)
    outcome = describe(plan, where)
    count = count_threads(count, budget)
    work = ConversionWork(plan, list(outcome.parts.values()), threads=count, memory=budget)
    if where.is_stream:
        outcome.refuse(force=force)
        losses = _write_stream(plan, outcome, work, threads=count, progress=progress)
        return Saved(outcome, time.monotonic() - started, losses)
    written = write_output(plan, outcome, work, force=force, threads=count, progress=progress)
    losses = work.add_losses(written.records)
    seconds = time.monotonic() - started
    return Saved(outcome, seconds, losses, written.kept_bytes, written.lost)


class Work(Protocol):
    """Fills the files of an outcome by tasks that threads carry out."""

    def select(self, records: Iterable[Record], /) -> list[Record]:
        """Return the records of an earlier run that are valid."""
        ...

    def count_bytes(self, records: Collection[tuple[int, str]], /) -> int:
        """Return how many bytes the records cover."""
        ...

    def list_tasks(self, records: Collection[tuple[int, str]], /) -> Sequence[Any]:
        """Return the tasks that are not recorded."""
        ...

    def do(
        self, task: Any, files: Sequence[Writer], report: Callable[[int], object], /
    ) -> list[Record]:
        """Carry out a task; return its record, which is written when the bytes are on the disk."""
        ...

    def list_documents(
        self, outcome: Outcome, records: Mapping[tuple[int, str], Record] | None, /
    ) -> Mapping[str, bytes]:
        """Return the files that describe the others, before the first task and after the last."""
        ...


class Written(NamedTuple):
    """The records of all tasks, and how much of them comes from a run that was stopped."""

    records: list[Record]
    kept_bytes: int
    lost: str


def write_output(
    plan: Plan | ShardPlan,
    outcome: Outcome,
    work: Work,
    *,
    force: bool,
    threads: int,
    progress: Callable[[int], object] | None,
) -> Written:
    """Write all files of an outcome, and give them their names."""
    identify = bind(identify_run, plan, outcome) if plan.source.files else None
    with hold_output(outcome, identify, force=force) as partial:
        recorder = Recorder(partial.journal, identify)
        try:
            files = partial.open_files()
            kept_bytes = work.count_bytes(recorder.keep(work.select(partial.kept)))
            if kept_bytes and progress is not None:
                progress(kept_bytes)
            _put_beside(plan, outcome, partial)
            for name, content in work.list_documents(outcome, None).items():
                partial.put(name, content)
            with recorder.begin(files):
                _fill(work, recorder, files, threads=threads, progress=progress)
            records = recorder.records
            _write_seams(outcome, files, records)
            for name, content in work.list_documents(outcome, records).items():
                partial.put(name, content)
            # Before the output gets its name: what was read may be half of the one and half of
            # another.
            plan.source.refuse_change()
            partial.publish(force=force)
        except BaseException as error:
            is_final = _is_final(error) or _has_changed(plan.source)
            partial.is_resumable = (partial.is_resumable or recorder.has_journal) and not is_final
            if partial.is_resumable and isinstance(error, WeightctlError):
                error.hint = f"{error.hint}; {_CONTINUES}" if error.hint else _CONTINUES
            raise
        return Written(list(records.values()), kept_bytes, partial.lost)


def _is_final(error: BaseException) -> bool:
    """Whether the same command for the same input would fail again, so that nothing is kept."""
    return isinstance(error, _FINAL) and not isinstance(error, FormatError | OutputError)


def _has_changed(source: Source) -> bool:
    """Whether what was read is of no use to another run: the input is not what it was."""
    try:
        source.refuse_change()
    except (FormatError, OSError):
        return True
    return False


def _fill(
    work: Work,
    recorder: Recorder,
    files: Sequence[Writer],
    *,
    threads: int,
    progress: Callable[[int], object] | None,
) -> None:
    """Do all tasks that are not recorded, and record them."""
    one_at_a_time = Lock()

    def do(task: Any, ended: Event) -> None:
        def report(nbytes: int) -> None:
            if ended.is_set():
                raise StoppedError
            if progress is not None:
                with one_at_a_time:
                    progress(nbytes)

        recorder.add(work.do(task, files, report))

    run_all(do, work.list_tasks(recorder.records), threads=threads)


def _put_beside(plan: Plan | ShardPlan, outcome: Outcome, partial: Partial) -> None:
    """Put what goes along beside the weights: index, config, tokenizer, licence."""
    if outcome.index:
        partial.put(*outcome.index)
    dtype = _find_main_dtype(plan) if isinstance(plan, Plan) else None
    if not outcome.is_directory:
        return
    below: dict[str, dict[str, str]] = {}
    for name, path in outcome.carried.items():
        directory, base = os.path.split(partial.path_of(name))
        below.setdefault(directory, {})[base] = path
    try:
        for directory, paths in below.items():
            carry(paths, directory, dtype)
        write_beside(outcome.documents, partial.path, dtype)
    except OSError as error:
        raise cannot_write(partial.path, error) from error


def _find_main_dtype(plan: Plan) -> str | None:
    """Return torch's name for what most of the weights become, None where the config has it.

    8-bit floats do not count, since transformers computes in the dtype of the config and torch does
    not compute in these: the tensors beside them decide.
    """
    is_stated = not plan.documents and all(item.is_copy for item in plan.items)
    if is_stated:
        return None
    sizes: Counter[str] = Counter()
    for item in plan.items:
        dtype = item.info.encoding.dtype
        if dtype is not None and dtype.is_float:
            sizes[dtype.value] += item.info.size
    wide = Counter({name: size for name, size in sizes.items() if not name.startswith("float8")})
    if not wide:
        # Every 8-bit float is one of bfloat16's values.
        return "bfloat16" if sizes else None
    return wide.most_common(1)[0][0]


def _write_seams(
    outcome: Outcome, files: Sequence[Writer], records: Mapping[tuple[int, str], Record]
) -> None:
    """Write what stands between tensors and behind them, where that is not zeros."""
    crcs: dict[str, int] = {}
    for record in records.values():
        crcs.update(record.facts.get("crc32", {}))
    for file, layout in zip(files, outcome.parts.values(), strict=True):
        if layout.between is None:
            continue
        checks: list[int] = []
        file.write(len(layout.header), layout.between(checks))
        for info, offset in zip(layout.tensors, layout.offsets, strict=True):
            checks.append(crcs.get(info.name, 0))
            file.write(offset + info.nbytes, layout.between(checks))


def _write_stream(
    plan: Plan,
    outcome: Outcome,
    work: ConversionWork,
    *,
    threads: int,
    progress: Callable[[int], object] | None,
) -> dict[str, Loss]:
    """Write the one file of an outcome into a pipe; return what was lost, by tensor."""
    ((_, layout),) = outcome.parts.items()
    tasks = cut_tasks(plan, [layout], nbytes=_STREAMED)
    # Where a checksum of the bytes is written too, they must be seen.
    fill = bind(work.fill, ranges=layout.between is None)
    losses: dict[str, Loss] = {}
    with open_stream(outcome.where.path) as stream:
        filled = run_in_order(fill, tasks, threads=threads)
        try:
            pull = _Pull(filled, losses, progress)
            write_in_order(layout, stream, pull)
        finally:
            filled.close()
    plan.source.refuse_change()
    return losses


class _Pull:
    """Gives each tensor its bytes; they come in the order of the tensors."""

    def __init__(
        self,
        filled: Iterator[Filled],
        losses: dict[str, Loss],
        progress: Callable[[int], object] | None,
    ) -> None:
        self._filled = filled
        self._losses = losses
        self._progress = progress
        self._ahead: Filled | None = None

    def __call__(self, info: TensorInfo) -> Iterator[Bytes | FileRange]:
        if self._ahead is None:
            self._ahead = next(self._filled, None)
        while self._ahead is not None and self._ahead.info is info:
            _, _, data, loss = self._ahead
            add_loss(self._losses, info.name, loss)
            yield data
            if self._progress is not None:
                self._progress(data.nbytes)
            self._ahead = next(self._filled, None)


@contextmanager
def open_stream(path: str) -> Generator[PipeWriter, None, None]:
    """Open a pipe or device for writing from front to back; `-` is stdout.

    Bytes that were written cannot be removed. Opening a named pipe waits for its reader. Raises
    `OutputError`.
    """
    if stream_name(path) == stream_name(STDOUT):
        if not sys.stdout:  # it was closed before this process began
            raise OutputError("stdout is closed", hint="write to a file")
        sys.stdout.flush()
        yield PipeWriter(sys.stdout.fileno(), "stdout")
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield PipeWriter(descriptor, path)
    finally:
        os.close(descriptor)
