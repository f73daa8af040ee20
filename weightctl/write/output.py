"""Writes the files of an outcome; all outputs except pipes are written by `write_output`."""

from __future__ import annotations

from collections import Counter
from functools import partial as bind
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import FormatError, OutputError, WeightctlError
from weightctl.formats.huggingface import restate_dtype
from weightctl.plan.plan import Plan
from weightctl.storage.location import has_commits, is_remote
from weightctl.system.phases import announce
from weightctl.write.conversion_tasks import DEFAULT_MEMORY
from weightctl.write.digests import refuse_altered
from weightctl.write.executors import is_shared
from weightctl.write.journal import Recorder
from weightctl.write.outcome import identify_run
from weightctl.write.partial import find_kept, hold_output
from weightctl.write.threads import StoppedError, run_all

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Iterable,
        Mapping,
        Sequence,
    )
    from contextlib import AbstractContextManager
    from threading import Event

    from weightctl.formats.base import Layout
    from weightctl.sharding.plan import ShardPlan
    from weightctl.storage.base import Writer
    from weightctl.weights.data import Source
    from weightctl.write.executors import WorkerCounts
    from weightctl.write.executors.distribution import Distribution
    from weightctl.write.executors.worker import BatchResult
    from weightctl.write.journal import Purpose, Record
    from weightctl.write.outcome import Outcome
    from weightctl.write.run import OutputRun
    from weightctl.write.tasks import Work

_COPY = 1 << 20
# Errors after which a run is not continued: impossible conversions, and faults of the program.
_FINAL = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_CONTINUES = "the same command continues where this one stopped"


class Written(NamedTuple):
    """The result of writing an output: the records of all tasks.

    `kept_bytes` is the number of bytes that a stopped run had written, and `lost` the reason if a
    stopped run could not be continued. `workers` are the counts of workers, None without workers.
    If processes share the run, `is_last` is true for the process that has completed the output.
    """

    records: list[Record]
    kept_bytes: int
    lost: str = ""
    pull_request: str = ""
    workers: WorkerCounts | None = None
    is_last: bool = True


def write_output(
    plan: Plan | ShardPlan,
    outcome: Outcome,
    work: Work,
    *,
    force: bool,
    threads: int,
    progress: Callable[[int], object] | None,
    memory: int = DEFAULT_MEMORY,
    distribution: Distribution | None = None,
    opened: Source | None = None,
) -> Written:
    """Write all files of an outcome under temporary names, and give them their final names.

    A quarter of `memory` is for parts that are uploaded. If the source `opened` is a sharded
    checkpoint, altered shards are refused: new digests would hide the change.
    """

    def check() -> None:
        if opened is not None:
            refuse_altered(opened, threads=threads)

    if distribution is not None:
        from weightctl.write.executors.distribution import refuse_seams

        refuse_seams(outcome)
    writing = _Writing(plan, outcome, work, force, threads, progress, memory, distribution)
    if distribution is None or not is_shared(distribution.on):
        with writing.hold() as run:
            check()
            return writing.write(run)
    check()
    from weightctl.write.executors.ranks import write_shared

    alone = writing._replace(progress=None, distribution=None)

    def finish() -> list[Record]:
        with alone.hold(is_shared=True) as run:
            return alone.write(run).records

    shared = write_shared(
        distribution, plan, outcome, work,
        hold=bind(alone.hold, is_shared=True), finish=finish, progress=progress,
    )  # fmt: skip
    return Written(
        list(shared.records), shared.kept_bytes, workers=shared.counts, is_last=shared.is_last
    )


class _Writing(NamedTuple):
    """What is written, and how; the fields are the arguments of `write_output`."""

    plan: Plan | ShardPlan
    outcome: Outcome
    work: Work
    force: bool
    threads: int
    progress: Callable[[int], object] | None
    memory: int
    distribution: Distribution | None

    @property
    def identify(self) -> Callable[[], Purpose] | None:
        """The function that identifies the run; None if no other run can continue it."""
        # Commits are not continued; the upload library finds chunks that were sent by their
        # content.
        if not self.plan.source.files or has_commits(self.outcome.path):
            return None
        return bind(identify_run, self.plan, self.outcome)

    def hold(self, *, is_shared: bool = False) -> AbstractContextManager[OutputRun]:
        """Begin or continue the run that writes the output."""
        outcome, force = self.outcome, self.force
        if not is_remote(outcome.path):
            return hold_output(outcome, self.identify, force=force, is_shared=is_shared)
        memory = self.memory // 4
        if has_commits(outcome.path):
            from weightctl.write.hub_commit import hold_commit

            return hold_commit(self.plan, outcome, force=force, memory=memory)
        from weightctl.write.object_uploads import hold_upload

        return hold_upload(
            self.plan, outcome, self.identify, force=force, memory=memory, is_shared=is_shared
        )

    def write(self, run: OutputRun) -> Written:
        """Do all tasks that are not recorded, and give the files their final names."""
        work = self.work
        recorder = Recorder(run.begin_journal, self.identify)
        counts: WorkerCounts | None = None
        try:
            files = run.open_files()
            kept_bytes = work.count_bytes(recorder.keep(work.select(run.kept)))
            announce(self.progress, f"writing {self.outcome.where.path}", self.outcome.tensor_bytes)
            if kept_bytes and self.progress is not None:
                self.progress(kept_bytes)
            self._put_beside(run)
            self._put_documents(run, None)
            seams = SeamWriter(self.outcome, files)
            seams.advance(recorder.records.values())
            with recorder.begin(files):
                if self.distribution is None:
                    self._fill(recorder, files, seams)
                else:
                    counts = self._distribute(self.distribution, recorder, run, seams)
            self._put_documents(run, recorder.records)
            # If the source has changed during the run, the output may mix its old and new bytes, so
            # it must not be published.
            self.plan.source.refuse_change()
            run.publish(force=self.force)
        except BaseException as error:
            is_final = _is_final(error) or _has_changed(self.plan.source)
            run.is_resumable = (run.can_continue or recorder.has_journal) and not is_final
            if run.can_continue and isinstance(error, WeightctlError):
                error.add_hint(_CONTINUES)
            raise
        found = list(recorder.records.values())
        return Written(found, kept_bytes, run.lost, run.pull_request, counts)

    def _fill(self, recorder: Recorder, files: Sequence[Writer], seams: SeamWriter) -> None:
        """Do all tasks that are not recorded, and record them."""
        one_at_a_time, progress = Lock(), self.progress

        def do(task: Any, ended: Event) -> None:
            def report(nbytes: int) -> None:
                if ended.is_set():
                    raise StoppedError
                if progress is not None:
                    with one_at_a_time:
                        progress(nbytes)

            records = self.work.do(task, files, report)
            seams.advance(records)
            recorder.add(records)

        def stop() -> None:
            for file in files:
                file.stop()

        tasks = self.work.list_tasks(recorder.records)
        run_all(do, tasks, threads=self.threads, release=stop)

    def _distribute(
        self, distribution: Distribution, recorder: Recorder, run: OutputRun, seams: SeamWriter
    ) -> WorkerCounts:
        """Let workers do all tasks that are not recorded, and record them."""
        from weightctl.write.executors.distribution import distribute, list_keyed_tasks

        def accept(result: BatchResult, nbytes: int) -> None:
            run.accept(result.delivered)
            seams.advance(result.records)
            recorder.add(result.records)
            if self.progress is not None:
                self.progress(nbytes)

        purpose = identify_run(self.plan, self.outcome)
        tasks = list_keyed_tasks(self.work, recorder.records)
        return distribute(distribution, purpose, tasks, run.place(), accept)

    def _put_documents(
        self, run: OutputRun, records: Mapping[tuple[int, str], Record] | None
    ) -> None:
        """Write the documents that describe the output; again when all records are there."""
        for name, content in self.work.list_documents(self.outcome, records).items():
            run.put(name, content)

    def _put_beside(self, run: OutputRun) -> None:
        """Write the files next to the weights, such as index, config, tokenizer and license."""
        outcome = self.outcome
        if outcome.index:
            run.put(*outcome.index)
        dtype = _find_main_dtype(self.plan) if isinstance(self.plan, Plan) else None
        if not outcome.is_directory:
            return
        for name, path in outcome.carried.items():
            content = restate_dtype(name, path, dtype)
            if content is None:
                run.copy(name, path)
            else:
                run.put(name, content)
        for name, document in outcome.documents.items():
            run.put(name, restate_dtype(name, document, dtype) or document)


def count_kept_bytes(plan: Plan | ShardPlan, outcome: Outcome, work: Work) -> int:
    """Return the bytes of tensors that a stopped run has written and that `work` would keep."""
    if outcome.where.is_stream or has_commits(outcome.path) or not plan.source.files:
        return 0
    identify = bind(identify_run, plan, outcome)
    if is_remote(outcome.path):
        from weightctl.write.object_uploads import find_kept_uploads

        records = find_kept_uploads(outcome, identify)
    else:
        records = find_kept(outcome, identify)
    return work.count_bytes(work.select(records))


def _is_final(error: BaseException) -> bool:
    """Whether the same command with the same input would fail again, so that no file is kept."""
    return isinstance(error, _FINAL) and not isinstance(error, FormatError | OutputError)


def _has_changed(source: Source) -> bool:
    """Whether the input has changed, so that another run cannot continue this one."""
    try:
        source.refuse_change()
    except (FormatError, OSError):
        return True
    return False


def _find_main_dtype(plan: Plan) -> str | None:
    """Return torch's name of the most frequent dtype; None if the config already states it.

    Types of 8-bit floats only count if there are no others: transformers computes in the dtype of
    the config, and torch cannot compute in these types.
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
        # bfloat16 can represent all values of 8-bit floats.
        return "bfloat16" if sizes else None
    return wide.most_common(1)[0][0]


class SeamWriter:
    """Writes the bytes between tensors, such as checksums, as soon as they are known.

    They depend on the CRC-32 of the tensors before them. Files with zeros between tensors are left
    out.
    """

    def __init__(self, outcome: Outcome, files: Sequence[Writer]) -> None:
        pairs = zip(files, outcome.parts.values(), strict=True)
        self._files = [
            (number, file, layout)
            for number, (file, layout) in enumerate(pairs)
            if layout.between is not None
        ]
        self._known: dict[tuple[int, str], int] = {}
        self._checks: dict[int, list[int]] = {}
        self._lock = Lock()

    def advance(self, records: Iterable[Record]) -> None:
        """Add the CRC-32 of further tensors, and write the bytes that can be computed from them."""
        if not self._files:
            return
        with self._lock:
            for record in records:
                for name, check in record.facts.get("crc32", {}).items():
                    self._known[record.file, name] = check
            for number, file, layout in self._files:
                self._write(number, file, layout)

    def _write(self, number: int, file: Writer, layout: Layout) -> None:
        checks = self._checks.get(number)
        if checks is None:
            checks = self._checks[number] = []
            self._write_one(file, layout, checks)
        for info in layout.tensors[len(checks) :]:
            # A tensor without bytes has no task.
            check = self._known.get((number, info.name)) if info.nbytes else 0
            if check is None:
                return
            checks.append(check)
            self._write_one(file, layout, checks)

    @staticmethod
    def _write_one(file: Writer, layout: Layout, checks: Sequence[int]) -> None:
        """Write the bytes after the tensors with the CRC-32 `checks`, and zeros up to the next."""
        place = len(checks)
        start = len(layout.header)
        if place:
            start = layout.offsets[place - 1] + layout.tensors[place - 1].nbytes
        stop = layout.offsets[place] if place < len(layout.offsets) else layout.nbytes
        seam = layout.between(checks) if layout.between is not None else b""
        file.write(start, seam)
        for at in range(start + len(seam), stop, _COPY):
            file.write(at, bytes(min(_COPY, stop - at)))
