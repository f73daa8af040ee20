"""Applies a patch: restores the second checkpoint from the first one."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from weightctl.deltas.blocks import PatchBlock, decode_block
from weightctl.deltas.files import open_plain_files
from weightctl.deltas.output import hold_files
from weightctl.deltas.patch_file import HEADER, read_patch
from weightctl.errors import FormatError
from weightctl.system.threads import cores, map_in_threads
from weightctl.text.wording import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from threading import Event

    from weightctl.deltas.patch_file import Patch, PatchChunk, SourceRecord
    from weightctl.storage.base import Bytes, Reader

# Chunks for each thread that are in memory at the same time.
_AHEAD = 3
_HINT = "use the checkpoint A of the command `weightctl diff A B --patch`"


class RestoredFile(NamedTuple):
    """A file that was restored: its path, its size, and its SHA-256."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class AppliedPatch:
    """A checkpoint that was restored: the paths that `apply_patch` was given, and the files."""

    base: str
    patch: str
    output: str
    files: tuple[RestoredFile, ...]


class _DecodeJob(NamedTuple):
    """A chunk to restore; `at` is the offset of its block, `name` is for errors."""

    chunk: PatchChunk
    at: int
    old: tuple[Reader, int] | None
    nbytes: int
    word: int
    name: str


def count_restored_bytes(path: str) -> int:
    """Return the number of bytes that a patch restores; raises `FormatError` if it is invalid."""
    patch, file = read_patch(path)
    file.close()
    return sum(each.size for each in patch.files)


def apply_patch(
    base: str | os.PathLike[str],
    patch: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> AppliedPatch:
    """Write the checkpoint that a patch restores from the checkpoint `base`.

    Each old chunk and each new file is compared with the SHA-256 in the patch. The output appears
    when it is complete; at an error, nothing is left. `progress` gets the number of bytes of each
    chunk. Raises `FormatError` if the patch is damaged, or if `base` is not the checkpoint that
    it was made from, and `OutputError` if the output cannot be written.
    """
    where, target = os.fspath(base), os.fspath(out)
    patch = os.fspath(patch)
    record, file = read_patch(patch)
    readers: dict[str, Reader] = {}
    try:
        readers = open_plain_files(where, [each.name for each in record.sources])
        for each in record.sources:
            _check_size(each, readers[each.name])
        sizes = {each.name: each.size for each in record.files}
        inputs = [where, file.path, *(reader.path for reader in readers.values())]
        with hold_files(target, sizes, inputs, is_directory=record.is_directory, force=force) as (
            partial,
            files,
        ):
            for name, start, data in _Decoder(record, file, readers).run(threads):
                files[name].write(start, data)
                if progress is not None:
                    progress(len(data))
            for reader in readers.values():
                reader.refuse_change()
            partial.publish(force=force)
    finally:
        for reader in (file, *readers.values()):
            reader.close()
    restored = (
        RestoredFile(
            os.path.join(target, each.name) if record.is_directory else target,
            each.size,
            each.digest,
        )
        for each in record.files
    )
    return AppliedPatch(where, patch, target, tuple(restored))


def _check_size(record: SourceRecord, file: Reader) -> None:
    if file.size != record.size:
        raise FormatError(
            file.path,
            None,
            "this is not the file that the patch was made from: it has "
            f"{file.size:,} bytes instead of {record.size:,}",
            hint=_HINT,
        )


class _Decoder:
    """Restores the files of a patch, and compares the SHA-256 of old chunks and new files."""

    def __init__(self, patch: Patch, file: Reader, old: Mapping[str, Reader]) -> None:
        self._patch, self._file = patch, file
        self._old = [old[each.name] for each in patch.sources]

    def run(self, threads: int | None) -> Iterator[tuple[str, int, Bytes]]:
        """Yield the name of a file, an offset there and the bytes at it, for all chunks in order.

        Raises `FormatError` if old bytes differ from those the patch was made from, or if the patch
        is damaged.
        """
        with map_in_threads(self._decode, self._list_jobs(), threads=threads or cores(),
                            ahead=_AHEAD) as made:  # fmt: skip
            for file in self._patch.files:
                digest, start = hashlib.sha256(), 0
                while start < file.size:
                    data = next(made)
                    digest.update(data)
                    yield file.name, start, data
                    start += len(data)
                if digest.hexdigest() != file.digest:
                    raise FormatError(
                        self._file.path, None,
                        f"the patch is damaged: the SHA-256 of the restored file {file.name} is "
                        "wrong",
                        hint="copy the patch again from its origin",
                    )  # fmt: skip

    def _list_jobs(self) -> Iterator[_DecodeJob]:
        at, size = HEADER, self._patch.chunk
        for file in self._patch.files:
            for each in file.ranges:
                for number, chunk in enumerate(each.chunks):
                    start = number * size
                    old = None
                    if each.source is not None and chunk.method.needs_source:
                        old = self._old[each.source[0]], each.source[1] + start
                    name = f"`{each.tensor}`" if each.tensor else file.name
                    yield _DecodeJob(
                        chunk, at, old, min(size, each.length - start), each.word, name
                    )
                    at += chunk.nbytes

    def _decode(self, job: _DecodeJob, ended: Event) -> Bytes:
        del ended  # a chunk is decoded in milliseconds
        chunk = job.chunk
        data = self._file.read(job.at, chunk.nbytes)
        old: bytearray | None = None
        if job.old is not None:
            old = bytearray(job.nbytes)
            file, offset = job.old
            file.read_into(offset, memoryview(old))
            if hashlib.sha256(old).hexdigest() != chunk.digest:
                raise FormatError(
                    file.path, offset,
                    "this is not the file that the patch was made from: the bytes of "
                    f"{printable(job.name)} differ",
                    hint=_HINT,
                )  # fmt: skip
        try:
            return decode_block(
                PatchBlock(chunk.method, data, chunk.changed), old, job.nbytes, job.word
            )
        except ValueError as error:
            raise FormatError(
                self._file.path, job.at, f"the patch is damaged: {error}",
                hint="copy the patch again from its origin",
            ) from error  # fmt: skip
