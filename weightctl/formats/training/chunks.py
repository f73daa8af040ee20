"""Tensors that are assembled from chunks, which are stored in several files."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Protocol

from weightctl.errors import FormatError
from weightctl.split import Cut
from weightctl.storage.base import FileRange
from weightctl.text.wording import list_first
from weightctl.weights.byte_ranges import assemble, byte_part, byte_shape
from weightctl.weights.data import Assembled
from weightctl.weights.info import Extent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from weightctl.split import Part
    from weightctl.storage.base import Reader
    from weightctl.weights.data import Source, WeightData
    from weightctl.weights.info import Header, TensorInfo

INCOMPLETE = "check that the files of all ranks are there, and that the copy is complete"
_FEW = 5
# A limit on the chunks of one row, because each pair of them is compared.
_MOST_BESIDE = 4096


class ChunkBlock(NamedTuple):
    """A box of elements of a tensor: the first index and the size in each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def ends(self) -> tuple[int, ...]:
        """The index after the last element in each dimension."""
        return tuple(at + size for at, size in zip(self.offsets, self.sizes, strict=True))


class ChunkData(Protocol):
    """The bytes of a chunk; reading them raises `FormatError` if they are invalid."""

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes of the chunk from `start` on."""
        ...

    def file_range(self) -> FileRange | None:
        """Return the range of a file with the bytes; None if reading changes the bytes."""
        ...


class StoredChunk(NamedTuple):
    """A chunk that is a tensor of a file, or the bytes of one from `offset` on."""

    source: Source
    name: str
    offset: int = 0

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with bytes of the tensor."""
        self.source.read_into(self.name, self.offset + start, buffer)

    def file_range(self) -> FileRange | None:
        """Return the range of the file from the first byte of the chunk on."""
        span = self.source.file_range(self.name)
        if span is None:
            return None
        return FileRange(span.file, span.offset + self.offset, span.nbytes - self.offset)


class TensorChunk(NamedTuple):
    """A part of the bytes of a tensor, and its data; without a part, it is the whole tensor."""

    part: Part
    data: ChunkData


class ChunkedTensor(NamedTuple):
    """The chunks of a tensor, whose bytes are an array of `shape`.

    The chunks do not overlap and have all bytes.
    """

    shape: tuple[int, ...]
    chunks: tuple[TensorChunk, ...]


class ChunkedSource:
    """A source of tensors that are assembled from chunks; a read reads only the bytes it needs."""

    def __init__(
        self, header: Header, files: Sequence[Reader], tensors: Mapping[str, ChunkedTensor]
    ) -> None:
        self._header, self._files, self._tensors = header, tuple(files), tensors

    @property
    def header(self) -> Header:
        """The header of the whole checkpoint; the extent of a tensor begins at its first chunk."""
        return self._header

    @property
    def files(self) -> tuple[Reader, ...]:
        return self._files

    def with_header(self, header: Header) -> ChunkedSource:
        """Return the same tensors with another header."""
        return ChunkedSource(header, self._files, self._tensors)

    def data(self, name: str) -> WeightData:
        """Return a tensor's data: a mapping if a file has the whole tensor, else read on use."""
        from weightctl.weights.data import WeightData

        info, span = self._header.tensors[name], self.file_range(name)
        if span is None:
            return WeightData.of(info, Assembled(self, name))
        return WeightData.stored(info, span.file.private(span.offset, span.nbytes), self)

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with bytes from the chunks; only the requested bytes are read."""
        shape, chunks = self._tensors[name]
        if len(chunks) == 1 and not chunks[0].part:
            chunks[0].data.read_into(start, buffer)
            return
        row = prod(shape[1:]) or 1
        first, last = start // row, -(-(start + buffer.nbytes) // row)
        parts = [
            (chunk.part, chunk.data.read_into)
            for chunk in chunks
            if _is_within(chunk.part, first, last)
        ]
        assemble(shape, parts, start, buffer)

    def file_range(self, name: str, /) -> FileRange | None:
        """Return the range of a file with the whole tensor; None if it has several chunks."""
        _, chunks = self._tensors[name]
        if len(chunks) != 1 or chunks[0].part:
            return None
        span = chunks[0].data.file_range()
        if span is None:
            return None
        return FileRange(span.file, span.offset, self._header.tensors[name].nbytes)

    def refuse_change(self) -> None:
        """Raise `FormatError` if a file was changed after it was opened."""
        for file in self._files:
            file.refuse_change()


class ChunkedTree:
    """The tensors of a checkpoint at the path `where`, while their chunks are found."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._tensors: dict[str, ChunkedTensor] = {}
        self._infos: dict[str, TensorInfo] = {}
        self._extents: dict[str, Extent] = {}
        self.problems: list[str] = []

    def add_blocks(
        self,
        info: TensorInfo,
        chunks: Sequence[tuple[ChunkBlock, ChunkData]],
        file: int,
        offset: int,
    ) -> None:
        """Add a tensor of blocks, whose first chunk is at `offset` of the file number `file`."""
        kept = [(block, data) for block, data in chunks if all(block.sizes)]
        problem = describe_cover(info.shape, (block for block, _ in kept))
        if problem:
            self.problems.append(f"`{info.name}`: {problem}")
            return
        parts = (
            TensorChunk(byte_part(info, part_of_block(info.shape, block)), data)
            for block, data in kept
        )
        self._put(info, ChunkedTensor(byte_shape(info), tuple(parts)), file, offset)

    def add_runs(
        self, info: TensorInfo, runs: Sequence[tuple[int, ChunkData]], file: int, offset: int
    ) -> None:
        """Add a tensor that consists of consecutive bytes: the number of bytes of each chunk."""
        ends = list(accumulate((count for count, _ in runs), initial=0))
        if ends[-1] != info.nbytes:
            self.problems.append(
                f"`{info.name}`: the files have {ends[-1]} of its {info.nbytes} bytes"
            )
            return
        block_of_run = [
            ChunkBlock((start,), (count,)) for start, (count, _) in zip(ends, runs, strict=False)
        ]
        parts = (
            TensorChunk(part_of_block((info.nbytes,), block), data)
            for block, (count, data) in zip(block_of_run, runs, strict=True)
            if count
        )
        self._put(info, ChunkedTensor((info.nbytes,), tuple(parts)), file, offset)

    def _put(self, info: TensorInfo, tensor: ChunkedTensor, file: int, offset: int) -> None:
        self._infos[info.name] = info
        self._tensors[info.name] = tensor
        self._extents[info.name] = Extent(file, offset, info.nbytes)

    def has(self, name: str) -> bool:
        """Whether a tensor of this name was added."""
        return name in self._infos

    def make_source(self, header: Header, files: Sequence[Reader]) -> ChunkedSource:
        """Return the source of the tensors; raises `FormatError` if there were problems."""
        if self.problems:
            start = "the checkpoint of distributed training is not complete"
            lines = "\n  ".join([f"{start}:", *list_first(self.problems, _FEW)])
            text = f"{start}: {self.problems[0]}" if len(self.problems) == 1 else lines
            raise FormatError(self._where, None, text, hint=INCOMPLETE)
        whole = header._replace(
            files=tuple(file.path for file in files),
            tensors=self._infos,
            extents=self._extents,
        )
        return ChunkedSource(whole, files, self._tensors)


def _is_within(part: Part, first: int, last: int) -> bool:
    """Whether a part may have rows from `first` to `last` of the first axis."""
    for cut in part:
        if cut.axis == 0:
            return any(start < last and first < stop for start, stop in cut.ranges)
    return True


def part_of_block(shape: Sequence[int], block: ChunkBlock) -> Part:
    """Return a block of a tensor as a part; it is empty for the whole tensor."""
    return tuple(
        Cut(axis, ((start, stop),))
        for axis, (start, stop, size) in enumerate(
            zip(block.offsets, block.ends, shape, strict=True)
        )
        if (start, stop) != (0, size)
    )


def describe_cover(shape: Sequence[int], blocks: Iterable[ChunkBlock]) -> str:
    """Return what is wrong with the blocks of a tensor; empty if each element is in one block."""
    active: list[ChunkBlock] = []
    covered = 0
    for block in sorted(blocks):
        if len(block.offsets) != len(shape) or len(block.sizes) != len(shape):
            return f"a chunk has {len(block.sizes)} dimensions, and the tensor has {len(shape)}"
        if any(end > size for end, size in zip(block.ends, shape, strict=True)):
            return (
                f"the chunk at {list(block.offsets)} of shape {list(block.sizes)} is not within "
                f"the shape {list(shape)}"
            )
        active = [one for one in active if not shape or one.ends[0] > block.offsets[0]]
        if len(active) > _MOST_BESIDE:
            return f"more than {_MOST_BESIDE} chunks have the same rows"
        for other in active:
            if _overlaps(block, other):
                return f"the chunks at {list(other.offsets)} and {list(block.offsets)} overlap"
        active.append(block)
        covered += prod(block.sizes)
    if covered != prod(shape):
        return (
            f"the chunks have {covered} of {prod(shape)} elements; the others are not in the "
            "checkpoint"
        )
    return ""


def _overlaps(one: ChunkBlock, other: ChunkBlock) -> bool:
    return all(
        start < stop and begin < end
        for start, stop, begin, end in zip(
            one.offsets, other.ends, other.offsets, one.ends, strict=True
        )
    )
