"""Distributed checkpoints of torch (DCP): a `.metadata`, and files with chunks of the tensors.

Each chunk is a file of `torch.save` inside such a file. Its header is read when the chunk is first
used. Source: `torch/distributed/checkpoint/filesystem.py`.
"""

from __future__ import annotations

import os
from posixpath import normpath
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError, MissingFileError
from weightctl.formats.pytorch.reading import read
from weightctl.formats.training.chunks import (
    INCOMPLETE,
    ChunkBlock,
    ChunkedSource,
    ChunkedTree,
    StoredChunk,
)
from weightctl.formats.training.metadata import DistributedTensor, read_metadata
from weightctl.formats.training.nested_files import FileSlice
from weightctl.storage.files import exists, open_reader, prepare
from weightctl.system.processes import without_collection
from weightctl.weights.info import Header, Leaf, TensorInfo
from weightctl.weights.source import FileSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from weightctl.dtype import Encoding
    from weightctl.formats.training.metadata import ChunkPlace, DistributedMetadata
    from weightctl.storage.base import FileRange, Reader

# Entries that are not tensors are shown up to this size and number.
_LARGEST_ENTRY, _MOST_ENTRIES = 1 << 16, 1000


class SavedChunk:
    """A chunk that is a file of `torch.save` inside of another file."""

    def __init__(self, file: FileSlice, start: int, name: str, stated: TensorInfo) -> None:
        self._file, self._start, self._name, self._stated = file, start, name, stated
        self._opened: StoredChunk | None = None

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with bytes of the chunk; raises `FormatError` if its file is invalid."""
        self._open().read_into(start, buffer)

    def file_range(self) -> FileRange | None:
        """Return the range of the outer file; raises as `read_into` does."""
        return self._open().file_range()

    def _open(self) -> StoredChunk:
        if self._opened is None:
            header = _read_slice(self._file, self._start, self._name)
            name = next(iter(header.tensors), None)
            found = None if name is None else header.tensors[name]._replace(name="")
            if name is None or found != self._stated:
                is_there = "nothing" if found is None else _describe(found)
                raise FormatError(
                    self._file.path,
                    self._start,
                    f"the chunk of `{self._name}` is {is_there}, and the metadata state "
                    f"{_describe(self._stated)}",
                    hint="the files are of different checkpoints, or damaged",
                )
            # Offsets in the slice become offsets in the file, which other programs can copy.
            self._opened = StoredChunk(FileSource(header, (self._file,)), name)
        return self._opened


def _describe(info: TensorInfo) -> str:
    return f"{info.encoding} {list(info.shape)}"


def _read_slice(file: FileSlice, start: int, name: str) -> Header:
    try:
        return read(file)
    except FormatError as error:
        raise FormatError(
            file.path,
            start + (error.offset or 0),
            f"the saved data of `{name}` are invalid: {error.reason}",
            hint=error.hint,
        ) from error


class _OpenedFiles(NamedTuple):
    """The open files, by their path in the metadata, and their numbers."""

    files: dict[str, Reader]
    numbers: dict[str, int]


@without_collection()
def open_distributed(listing: str) -> ChunkedSource:
    """Open the distributed checkpoint of a `.metadata`.

    Raises `FormatError` if files are missing, or if chunks overlap or do not cover a tensor.
    """
    metadata = read_metadata(open_reader(listing))
    opened = _open_files(listing, metadata)
    tree = ChunkedTree(listing)
    aliases: dict[str, str] = {}
    names: dict[tuple[ChunkPlace, tuple[int, ...], str], str] = {}
    unread: list[str] = []
    for name, record in metadata.tensors.items():
        encoding = record.encoding
        if encoding is None or encoding.block > 2:
            unread.append(f"{name} ({record.dtype})")
            continue
        stated = _unpack_pairs(record, encoding)
        info = TensorInfo(name, stated.shape, encoding)
        if problem := _find_problem(stated, opened):
            tree.problems.append(f"`{name}`: {problem}")
            continue
        first = stated.chunks[0][1] if stated.chunks else None
        if first is not None and len(stated.chunks) == 1:
            # Tied weights are one chunk with several names.
            other = names.setdefault((first, info.shape, encoding.name), name)
            if other != name:
                aliases[name] = other
                continue
        number = 0 if first is None else opened.numbers[first.path]
        chunks = list(_list_chunks(info, stated, opened))
        tree.add_blocks(info, chunks, number, 0 if first is None else first.offset)
    leaves = _read_entries(metadata, opened)
    notes: tuple[str, ...] = ()
    if unread:
        named = ", ".join(unread[:3]) + (", ..." if len(unread) > 3 else "")
        notes = (f"tensors of unsupported types, which are not read: {named}",)
    warnings: tuple[str, ...] = ()
    if metadata.dangerous:
        named = ", ".join(metadata.dangerous[:3])
        warning = (
            f"{listing}: loading this file in other programs can run code, because its pickle "
            f"names {named}; weightctl does not run this code"
        )
        warnings = (warning,)
    header = Header(
        format="dcp",
        files=(),
        tensors={},
        extents={},
        aliases=aliases,
        leaves=leaves,
        listing=listing,
        notes=notes,
        warnings=warnings,
    )
    return tree.make_source(header, tuple(opened.files.values()))


def _unpack_pairs(stated: DistributedTensor, encoding: Encoding) -> DistributedTensor:
    """Return a tensor with the number of its values; torch's shape counts pairs of 4-bit values."""
    if encoding.block != 2:
        return stated

    def double(sizes: tuple[int, ...]) -> tuple[int, ...]:
        return (*sizes[:-1], 2 * sizes[-1]) if sizes else (2,)

    chunks = tuple(
        (ChunkBlock(double(block.offsets), double(block.sizes)), place)
        for block, place in stated.chunks
    )
    return stated._replace(shape=double(stated.shape), chunks=chunks)


def _open_files(listing: str, metadata: DistributedMetadata) -> _OpenedFiles:
    directory = os.path.dirname(listing)
    places = [place for each in metadata.tensors.values() for _, place in each.chunks]
    names = sorted({place.path for place in (*places, *metadata.entries.values())})
    for name in names:
        if os.path.isabs(name) or "\0" in name or normpath(name).startswith(".."):
            raise FormatError(
                listing,
                None,
                f"it refers to a file outside of its directory: {name[:100]!r}",
                hint="the file is damaged or malicious",
            )
    paths = {name: os.path.join(directory, name) for name in names}
    prepare([*paths.values()])
    missing = [name for name, path in paths.items() if not exists(path)]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        named = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise MissingFileError(
            listing,
            None,
            f"{len(missing)} of {len(names)} files of the distributed checkpoint {are} missing: "
            f"{named}",
            hint=INCOMPLETE,
        )
    files = {name: open_reader(path) for name, path in paths.items()}
    return _OpenedFiles(files, {name: number for number, name in enumerate(files)})


def _find_problem(stated: DistributedTensor, opened: _OpenedFiles) -> str:
    """Return why the chunks of a tensor are invalid; empty if they are valid."""
    for block, place in stated.chunks:
        file = opened.files[place.path]
        if place.offset + place.length > file.size:
            return (
                f"the chunk at {list(block.offsets)} is at bytes {place.offset} to "
                f"{place.offset + place.length} of {place.path}, which has {file.size} bytes"
            )
        if place.transforms:
            named = ", ".join(place.transforms)
            return f"the chunk at {list(block.offsets)} is encoded with an extension ({named})"
    return ""


def _list_chunks(
    info: TensorInfo, stated: DistributedTensor, opened: _OpenedFiles
) -> Iterator[tuple[ChunkBlock, SavedChunk]]:
    for block, place in stated.chunks:
        file = FileSlice(opened.files[place.path], place.offset, place.length)
        own = TensorInfo("", block.sizes, info.encoding)
        yield block, SavedChunk(file, place.offset, info.name, own)


def _read_entries(metadata: DistributedMetadata, opened: _OpenedFiles) -> dict[str, Leaf]:
    """Return the entries that are not tensors; small ones are read to show their values."""
    leaves: dict[str, Leaf] = {}
    for number, (name, place) in enumerate(metadata.entries.items()):
        kept = {f"{name}.{below}" if below else name: leaf
                for below, leaf in _read_entry(place, number, opened)}  # fmt: skip
        leaves.update((key, leaf) for key, leaf in kept.items() if key not in metadata.tensors)
    return leaves


def _read_entry(place: ChunkPlace, number: int, opened: _OpenedFiles) -> Iterable[tuple[str, Leaf]]:
    file = opened.files[place.path]
    unread = [("", Leaf("bytes", f"{place.length} bytes"))]
    is_within = place.offset + place.length <= file.size
    if not is_within or place.length > _LARGEST_ENTRY or number >= _MOST_ENTRIES:
        return unread
    try:
        header = read(FileSlice(file, place.offset, place.length))
    except FormatError:
        return unread
    tensors = (
        (name, Leaf("torch.Tensor", f"{info.encoding} {list(info.shape)}"))
        for name, info in header.tensors.items()
    )
    return [*header.leaves.items(), *tensors] or unread
