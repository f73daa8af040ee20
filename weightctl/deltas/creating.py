"""Writes a patch: what changed between two checkpoints."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from weightctl.deltas.blocks import Method, PatchBlock, encode_chunk
from weightctl.deltas.files import open_checkpoint_files
from weightctl.deltas.output import hold_files
from weightctl.deltas.patch_file import (
    CHUNK,
    HEADER,
    FileRecord,
    Patch,
    PatchChunk,
    RangeRecord,
    SourceRecord,
    make_ends,
)
from weightctl.system.threads import Memory, cores, map_in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import Event

    from weightctl.deltas.files import ByteSpan, CheckpointFiles
    from weightctl.storage.base import Reader

# Chunks for each thread that are in memory at the same time.
_AHEAD = 3


class WrittenPatch(NamedTuple):
    """A patch that was written: its size, and that of the checkpoint that it restores.

    `tensors` are the numbers of tensors that are unchanged, changed, and new; a new tensor does not
    exist in the old checkpoint with this size. `methods` are the bytes of the new checkpoint that
    are restored in each way.
    """

    path: str
    bytes: int
    restored_bytes: int
    files: int
    tensors: dict[str, int]
    methods: dict[str, int]


class _EncodeJob(NamedTuple):
    """A chunk: its readers and offsets; the old one is None if there is no source."""

    old: tuple[Reader, int] | None
    new: tuple[Reader, int]
    nbytes: int
    word: int


class _EncodedChunk(NamedTuple):
    chunk: PatchChunk
    block: PatchBlock
    new: bytes


def count_patched_bytes(path: str) -> int:
    """Return the bytes that `write_patch` reads of the new checkpoint at a path."""
    found = open_checkpoint_files(path)
    found.close()
    return sum(file.size for file in found.files.values())


def write_patch(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> WrittenPatch:
    """Write a patch from which `apply_patch` restores the checkpoint `second`, given `first`.

    Both are compared in chunks, so they may be larger than the memory. Tensors are paired by name.
    `progress` gets the number of bytes of each chunk of `second`. Raises `FormatError` if a file
    cannot be read, `ConversionError` if a path is one of several files of a checkpoint, and
    `OutputError` if the patch cannot be written.
    """
    old, new = open_checkpoint_files(os.fspath(first)), open_checkpoint_files(os.fspath(second))
    target = os.fspath(path)
    inputs = [old.path, new.path, *(file.path for each in (old, new)
                                    for file in each.files.values())]  # fmt: skip
    try:
        name = os.path.basename(target)
        with hold_files(target, {name: 0}, inputs, is_directory=False, force=force) as held:
            partial, files = held
            encoder = _Encoder(old, new, threads, progress)
            end = HEADER
            for block in encoder.run():
                files[name].write(end, block)
                end += len(block)
            header, index = make_ends(encoder.patch(), end)
            files[name].write(end, index)
            files[name].write(0, header)
            for each in (old, new):
                each.refuse_change()
            partial.publish(force=force)
    finally:
        old.close()
        new.close()
    restored = sum(file.size for file in new.files.values())
    counts = {kind: encoder.tensors[kind] for kind in ("unchanged", "changed", "new")}
    methods = {method.value: encoder.methods[method] for method in Method}
    size = end + len(index)
    return WrittenPatch(target, size, restored, len(new.files), counts, methods)


class _Encoder:
    """Encodes the files of a checkpoint, and keeps the records of the index."""

    def __init__(
        self,
        old: CheckpointFiles,
        new: CheckpointFiles,
        threads: int | None,
        progress: Callable[[int], object] | None,
    ) -> None:
        self._old, self._new = old, new
        self._threads, self._progress = threads, progress
        self._memory = Memory()
        self._files: list[FileRecord] = []
        self._used: dict[str, int] = {}
        self.tensors: Counter[str] = Counter()
        self.methods: Counter[Method] = Counter()

    def patch(self) -> Patch:
        """Return the records of everything that was encoded."""
        sources = tuple(SourceRecord(name, self._old.files[name].size) for name in self._used)
        return Patch(self._new.is_directory, CHUNK, sources, tuple(self._files))

    def run(self) -> Iterator[bytes]:
        """Yield the blocks of all chunks in order."""
        spans = {name: self._new.spans(name) for name in self._new.files}
        sources = {name: [self._find_source(each) for each in listed]
                   for name, listed in spans.items()}  # fmt: skip
        jobs = (
            job
            for name, listed in spans.items()
            for span, source in zip(listed, sources[name], strict=True)
            for job in self._list_jobs(span, source)
        )
        with map_in_threads(self._encode, jobs, threads=self._threads or cores(),
                            ahead=_AHEAD) as made:  # fmt: skip
            for name, listed in spans.items():
                digest = hashlib.sha256()
                ranges: list[RangeRecord] = []
                for span, source in zip(listed, sources[name], strict=True):
                    chunks: list[PatchChunk] = []
                    for _ in range(-(-span.length // CHUNK)):
                        each = next(made)
                        digest.update(each.new)
                        chunks.append(each.chunk)
                        self._count(each)
                        yield bytes(each.block.data)
                    ranges.append(self._record(span, source, chunks))
                file = self._new.files[name]
                self._files.append(FileRecord(name, file.size, digest.hexdigest(), tuple(ranges)))

    def _count(self, made: _EncodedChunk) -> None:
        self.methods[made.chunk.method] += len(made.new)
        if self._progress is not None:
            self._progress(len(made.new))

    def _record(
        self, span: ByteSpan, source: tuple[str, int] | None, chunks: list[PatchChunk]
    ) -> RangeRecord:
        if span.tensor:
            is_same = all(each.method is Method.SAME for each in chunks)
            kind = "unchanged" if is_same else "changed" if source is not None else "new"
            self.tensors[kind] += 1
        place = None
        if source is not None and any(each.method.needs_source for each in chunks):
            place = (self._used.setdefault(source[0], len(self._used)), source[1])
        return RangeRecord(span.tensor, span.length, span.word, place, tuple(chunks))

    def _find_source(self, span: ByteSpan) -> tuple[str, int] | None:
        """Return the old file and the offset of the bytes that a range is compared with."""
        if span.tensor:
            found = self._old.tensors.get(span.tensor)
            if found is None or (found.length, found.word) != (span.length, span.word):
                return None
            return found.file, found.offset
        name = span.file
        if not self._old.is_directory and not self._new.is_directory:
            (name,) = self._old.files
        file = self._old.files.get(name)
        if file is None or span.offset + span.length > file.size:
            return None
        return name, span.offset

    def _list_jobs(self, span: ByteSpan, source: tuple[str, int] | None) -> Iterator[_EncodeJob]:
        new = self._new.files[span.file]
        for start in range(0, span.length, CHUNK):
            old = None
            if source is not None:
                old = self._old.files[source[0]], source[1] + start
            nbytes = min(CHUNK, span.length - start)
            yield _EncodeJob(old, (new, span.offset + start), nbytes, span.word)

    def _encode(self, job: _EncodeJob, ended: Event) -> _EncodedChunk:
        del ended  # a chunk is encoded in milliseconds
        file, offset = job.new
        new = bytearray(job.nbytes)
        file.read_into(offset, memoryview(new))
        old = None
        if job.old is not None:
            file, offset = job.old
            old = self._memory.room("old", job.nbytes)
            file.read_into(offset, old)
        block = encode_chunk(old, new, job.word)
        digest = ""
        if old is not None and block.method.needs_source:
            digest = hashlib.sha256(old).hexdigest()
        chunk = PatchChunk(block.method, len(block.data), digest, block.changed)
        return _EncodedChunk(chunk, block, bytes(new))
