"""Shards a checkpoint from its source to the files of ranks."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

from weightctl.errors import ConversionError
from weightctl.formats.huggingface import describe_left_out
from weightctl.formats.open.opening import open_source
from weightctl.formats.sharded.manifest import manifest_bytes
from weightctl.formats.sharded.opening import MANIFEST
from weightctl.formats.sharded.records import fingerprint_source
from weightctl.plan.arrangement import leave_room
from weightctl.plan.choices import DEFAULT_TASK
from weightctl.sharding.passes import RankPlan
from weightctl.sharding.plan_file import make_rules, read_rules
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid, part_shape
from weightctl.storage.location import is_remote
from weightctl.system.threads import Memory, thread_count
from weightctl.text.sizes import parse_size
from weightctl.weights.byte_ranges import boxes, byte_part, byte_shape, find_overlaps, scatter
from weightctl.weights.steps.sliced import runs
from weightctl.write.conversion_tasks import DEFAULT_MEMORY
from weightctl.write.executors.worker import PlannedWork, PlanRequest
from weightctl.write.journal import Record
from weightctl.write.outcome import describe_shards
from weightctl.write.output import count_kept_bytes, write_output
from weightctl.write.save import Saved
from weightctl.write.tasks import KeyedTask, RemoteReads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    from weightctl.formats.base import Layout
    from weightctl.formats.sharded.records import Manifest
    from weightctl.sharding.passes import Content, Pass
    from weightctl.sharding.plan import ShardPlan
    from weightctl.sharding.planning import CutRulesLike
    from weightctl.split import Part
    from weightctl.storage.base import FileRange
    from weightctl.weights.byte_ranges import Box, Overlap
    from weightctl.weights.protocol import Openable
    from weightctl.write.executors.distribution import Distribution
    from weightctl.write.outcome import Outcome
    from weightctl.write.tasks import NumberedWriters

# The number of bytes to read at a time: they are still in a cache when they are hashed and written.
# With fewer bytes, threads would wait for each other more often.
_CHUNK = 1 << 20
_ZEROS = bytes(1 << 20)
# The nanoseconds that one core takes to hash a byte.
_SHA256_NS = 0.7


def save_shards(
    plan: ShardPlan,
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
    distribution: Distribution | None = None,
) -> Saved:
    """Write the files of all ranks; afterwards, the directory is complete, or unchanged on error.

    A stopped run can be continued, as described in `save`. `threads` is the number of threads, by
    default one for each core; each uses about 2 MB. `progress` is called with the bytes that a
    stopped run had written, and then with the number of bytes of each chunk written, by one thread
    at a time; the sum of all calls is `tensor_bytes` of the outcome. If a `distribution` is given,
    its workers do the work.

    Raises the errors of `describe_shards` and `Outcome.refuse` before anything is written,
    `OutputError` if the directory cannot be written or another run is writing it, and `FormatError`
    if the source cannot be read, changes during the run, or is a sharded checkpoint with altered
    shards.
    """
    started = time.monotonic()
    count = thread_count(threads)
    outcome = describe_shards(plan, out)
    work = RankWork(plan, list(outcome.parts.values()))
    written = write_output(
        plan,
        outcome,
        work,
        force=force,
        threads=count,
        progress=progress,
        distribution=distribution,
        opened=plan.source,
    )
    return Saved(outcome, time.monotonic() - started, {}, *written[1:])


def list_notes(plan: ShardPlan) -> list[str]:
    """Return messages for the user about a plan, and files that its output lacks."""
    header = plan.source.header
    return [*header.notes, *plan.notes, *describe_left_out(header)]


@dataclass(frozen=True, slots=True, repr=False)
class ShardedOutput:
    """A sharded checkpoint that is planned or written; `saved` is None until it is written.

    Workers make the plan from `request`. It is None if the source is not a path.
    """

    plan: ShardPlan
    outcome: Outcome
    saved: Saved | None = None
    request: PlanRequest | None = None

    def __repr__(self) -> str:
        state = "planned" if self.saved is None else "written"
        return (
            f"<ShardedOutput at {self.outcome.where.path}: {self.plan.grid.ranks} ranks, {state}>"
        )

    @property
    def notes(self) -> list[str]:
        """Messages for the user about the plan."""
        return list_notes(self.plan)

    @property
    def paths(self) -> list[str]:
        """The paths of the ranks' files."""
        return self.outcome.files

    @property
    def kept_bytes(self) -> int:
        """The bytes of tensors that a stopped run has written and that `save` keeps."""
        if self.saved is not None:
            return self.saved.kept_bytes
        work = RankWork(self.plan, list(self.outcome.parts.values()))
        return count_kept_bytes(self.plan, self.outcome, work)

    def save(
        self,
        *,
        force: bool = False,
        threads: int | None = None,
        progress: Callable[[int], object] | None = None,
        on: str | Executor | None = None,
        task_size: int | str = DEFAULT_TASK,
    ) -> ShardedOutput:
        """Write the output; the arguments and errors are those of `shard` and `save_shards`."""
        distribution = None
        if on is not None:
            from weightctl.write.executors.distribution import plan_distribution

            distribution = plan_distribution(
                on,
                self.request,
                self.outcome.where,
                threads=threads,
                memory=DEFAULT_MEMORY,
                task_size=task_size,
            )
        saved = save_shards(
            self.plan,
            self.outcome.where.path,
            force=force,
            threads=threads,
            progress=progress,
            distribution=distribution,
        )
        return replace(self, saved=saved)

    def make_work(self, *, threads: int, memory: int) -> PlannedWork:
        """Return the work, for a worker; each of its threads uses about 2 MB."""
        del threads, memory
        work = RankWork(self.plan, list(self.outcome.parts.values()))
        return PlannedWork(self.plan, self.outcome, work)


def shard(
    source: Openable,
    out: str | os.PathLike[str],
    *,
    tp: int = 1,
    ep: int = 1,
    pp: int = 1,
    rules: str | os.PathLike[str] | Mapping[str, Any] | CutRulesLike | None = None,
    layout: str = "ranks",
    to: str | None = None,
    source_format: str | None = None,
    header_room: int | str = 0,
    force: bool = False,
    dry_run: bool = False,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
    on: str | Executor | None = None,
    task_size: int | str = DEFAULT_TASK,
) -> ShardedOutput:
    """Split a checkpoint for tp x ep x pp ranks, as `weightctl shard` does.

    `source` is a path, a tree of weights, or arrays by name such as a `state_dict()`. `out` is the
    directory to write, with a file for each rank. The tensors of each layer are split across `tp`
    ranks, experts are divided among `ep` groups, and layers among `pp` stages. `rules` is the path
    of a plan file, or a dict with the content of its `[tensors]`, such as
    `{"o_proj": "columnwise"}`; other tensors are split by the rules of the model family. `layout`
    is "ranks" or "vllm", and `to` the format of the files. `header_room` is the room in bytes, or
    text such as "64KB", that each header leaves for later edits. `on` and `task_size` are those of
    `weightctl.convert`.

    Returns the written output. If `dry_run` is set, nothing is written: `plan` and `outcome` of the
    result describe the files, and its `save` writes them. Raises `ShardingError`,
    `ConversionError`, `FormatError` and `OutputError`, which are `WeightctlError`s with a hint.
    """
    request = PlanRequest.of(shard, dict(locals()))
    plan = shard_plan(
        open_source(source, source_format),
        Grid(tp, ep, pp),
        rules=_parse_rules(rules),
        layout=layout,
        format_name=to,
    )
    if room := parse_size(header_room) if isinstance(header_room, str) else header_room:
        plan = replace(plan, metadata=leave_room(plan.metadata, plan.format, room))
    planned = ShardedOutput(plan, describe_shards(plan, out), request=request)
    if dry_run:
        return planned
    return planned.save(force=force, threads=threads, progress=progress, on=on, task_size=task_size)


def _parse_rules(
    rules: str | os.PathLike[str] | Mapping[str, Any] | CutRulesLike | None,
) -> CutRulesLike | None:
    if isinstance(rules, str | os.PathLike):
        return read_rules(os.fspath(rules))
    return make_rules(rules) if isinstance(rules, Mapping) else rules


class RankWork:
    """Makes the tensors of all ranks, in passes that threads run in parallel.

    The SHA-256 of each tensor is recorded as `sha256`.
    """

    def __init__(self, plan: ShardPlan, layouts: Sequence[Layout]) -> None:
        self._plan = plan
        self._ranks = RankPlan(plan, layouts)
        self._source = plan.source
        self._tensors = plan.source.header.tensors
        self._memory = Memory()
        self._remote = RemoteReads(())

    def select(self, records: Iterable[Record]) -> dict[tuple[int, str], Record]:
        wanted = {
            (rank, shard.info.name)
            for rank, shards in enumerate(self._plan.ranks)
            for shard in shards
        }
        return {
            (record.file, record.key): record
            for record in records
            if (record.file, record.key) in wanted and _is_sha256(record.facts.get("sha256"))
        }

    def count_bytes(self, records: Collection[tuple[int, str]]) -> int:
        return sum(
            shard.info.nbytes
            for rank, shards in enumerate(self._plan.ranks)
            for shard in shards
            if (rank, shard.info.name) in records
        )

    def list_tasks(self, records: Collection[tuple[int, str]]) -> list[Pass]:
        return [*self.assign(self._ranks.list_passes(records))]

    def measure(self, task: Pass) -> KeyedTask:
        """Return the pass itself as the key of a task, with its bytes and its expected time."""
        # If ranks have short byte ranges of a tensor, the whole tensor is read, once for all ranks.
        read = task.nbytes if task.by_itself else sum(map(self._count_bytes, task.sources))
        rank, _, offset = self._ranks.find_place(*task.members[:2])
        hashing = task.nbytes * _SHA256_NS * 1e-9
        return KeyedTask(task, read, task.written, (rank, offset), hashing)

    def _count_bytes(self, name: str) -> int:
        return self._tensors[name].nbytes

    def assign(self, keys: Sequence[Pass]) -> Sequence[Pass]:
        """Return the passes `keys`, which will be done next, and read them ahead if remote."""
        if any(is_remote(file.path) for file in self._source.files):
            self._remote = RemoteReads(chain.from_iterable(map(self._list_reads, keys)))
        return keys

    def do(
        self, task: Pass, files: NumberedWriters, report: Callable[[int], object]
    ) -> list[Record]:
        """Carry out a pass, and return its records; the bytes may not be on the disk yet.

        `report` is called with the bytes of each chunk, multiplied by the number of its ranks.
        """
        self._remote.advance()
        contents = self._ranks.list_contents(task)
        digests = [hashlib.sha256() for _ in contents]
        ends = [0] * len(contents)
        by_itself = task.by_itself
        chunks = self._by_runs(contents) if by_itself else self._by_boxes(task.sources, contents)
        for number, data in chunks:
            content = contents[number]
            digests[number].update(data)
            for rank, _, offset in content.places:
                files[rank].write(offset + ends[number], data)
            ends[number] += len(data)
            report(len(data) * len(content.places))
        for content, digest, end in zip(contents, digests, ends, strict=True):
            _refuse_other(content, end, self._count_expected(content))
            for start in range(end, content.nbytes, len(_ZEROS)):
                zeros = memoryview(_ZEROS)[: content.nbytes - start]
                digest.update(zeros)
                for rank, _, offset in content.places:
                    files[rank].write(offset + start, zeros)
            report((content.nbytes - end) * len(content.places))
        return [
            Record(place.rank, place.name, {"sha256": digest.hexdigest()})
            for content, digest in zip(contents, digests, strict=True)
            for place in content.places
        ]

    def list_documents(
        self, outcome: Outcome, records: Mapping[tuple[int, str], Record] | None
    ) -> dict[str, bytes]:
        """Return the manifest.

        Without records, it does not have digests, which marks the checkpoint as incomplete.
        """
        manifest = outcome.manifest(fingerprint_source(self._source))
        if records is not None:
            manifest = _add_digests(manifest, records)
        return {MANIFEST: manifest_bytes(manifest)}

    def _count_expected(self, content: Content) -> int:
        found = 0
        for name, part in content.pieces:
            info = self._tensors[name]
            found += prod(part_shape(byte_shape(info), byte_part(info, part)))
        return found

    def _by_runs(self, contents: Sequence[Content]) -> Iterator[tuple[int, memoryview]]:
        """Yield the chunks of the contents, one after the other, with the index of the content."""
        for number, content in enumerate(contents):
            for name, part in content.pieces:
                info, step = self._tensors[name], self._step(name)
                for start, nbytes in runs(info, part):
                    stop = start + nbytes
                    for at in range(start, stop, step):
                        held = self._memory.room("chunk", min(step, stop - at))
                        self._source.read_into(name, at, held)
                        yield number, held

    def _list_boxes(
        self, name: str, parts: Sequence[Part]
    ) -> Iterator[tuple[Box, list[tuple[int, Overlap]]]]:
        """Yield the boxes of a tensor that are read, with their overlaps with the contents."""
        shape = byte_shape(self._tensors[name])
        for box in boxes(shape, self._step(name)):
            overlaps = [
                (number, overlap)
                for number, part in enumerate(parts)
                for overlap in find_overlaps(shape, part, box)
            ]
            if overlaps:
                yield box, overlaps

    def _list_reads(self, task: Pass) -> Iterator[FileRange]:
        """Yield the ranges of files that a pass will read."""
        contents = self._ranks.list_contents(task)
        if task.by_itself:
            for name, part in (piece for content in contents for piece in content.pieces):
                source = self._source.file_range(name)
                if source is not None:
                    for start, nbytes in runs(self._tensors[name], part):
                        yield source.part(start, start + nbytes)
            return
        for number, name in enumerate(task.sources):
            source = self._source.file_range(name)
            if source is None:
                continue
            info = self._tensors[name]
            parts = [byte_part(info, content.pieces[number].part) for content in contents]
            for box, _ in self._list_boxes(name, parts):
                start, nbytes = _range(byte_shape(info), box)
                yield source.part(start, start + nbytes)

    def _by_boxes(
        self, sources: Sequence[str], contents: Sequence[Content]
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield the chunks of all contents, in the source's order, with the content's index."""
        for number, name in enumerate(sources):
            info = self._tensors[name]
            shape = byte_shape(info)
            parts = [byte_part(info, content.pieces[number].part) for content in contents]
            for box, met in self._list_boxes(name, parts):
                start, nbytes = _range(shape, box)
                held = self._memory.room("box", nbytes)
                self._source.read_into(name, start, held)
                for of, found in met:
                    if found.is_contiguous:
                        yield of, held[found.start : found.start + found.nbytes]
                        continue
                    own = self._memory.room("chunk", found.nbytes)
                    scatter(shape, box, held, found, own)
                    yield of, own

    def _step(self, name: str) -> int:
        """Return the number of bytes of a tensor to read at a time, in whole blocks."""
        encoding = self._tensors[name].encoding
        # Changing the byte order needs whole blocks; values of unknown encodings are not changed.
        block = encoding.size if encoding.is_known else 1
        return max(_CHUNK // block, 1) * block


def _range(shape: Sequence[int], box: Box) -> tuple[int, int]:
    """Return the start and the length of the bytes of a box."""
    index = 0
    for at, size in zip(box.place, shape, strict=False):
        index = index * size + at
    axis = len(box.place)
    inner = prod(shape[axis + 1 :])
    return (index * shape[axis] + box.start) * inner, (box.stop - box.start) * inner


def _refuse_other(content: Content, end: int, expected: int) -> None:
    if end != expected or end > content.nbytes:
        raise ConversionError(
            f"`{content.places[0].name}` has {end} bytes instead of {expected}",
            hint="this is an error in weightctl; please report it",
        )


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and not set(value) - set("0123456789abcdef")


def _add_digests(manifest: Manifest, records: Mapping[tuple[int, str], Record]) -> Manifest:
    return manifest._replace(
        files=tuple(
            file._replace(
                shards=tuple(
                    shard._replace(sha256=records[rank, shard.info.name].facts["sha256"])
                    for shard in file.shards
                )
            )
            for rank, file in enumerate(manifest.files)
        )
    )
