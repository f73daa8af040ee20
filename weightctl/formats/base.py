"""The interface of the container formats, and code that they share."""

from __future__ import annotations

from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable
from zlib import crc32

from weightctl.errors import ConversionError
from weightctl.weights.metadata import TEXT, MetadataValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from weightctl.storage.base import FileRange, Reader
    from weightctl.weights.info import Header, TensorInfo

Bytes = bytes | bytearray | memoryview

# The metadata key for the boundary, in bytes, on which tensors start. The key is GGUF's. Other
# formats keep it too, so that a copy has the alignment of its source.
ALIGNMENT_KEY = "general.alignment"
# The metadata key that records how the names of a PyTorch checkpoint were nested, in any format
# (`weightctl.formats.pytorch.nesting`).
LEVELS_KEY = "pytorch.levels"
# The metadata key of spaces that leave room in the header, so that later edits fit. In GGUF it is
# stored; in safetensors the spaces follow the JSON. Readers leave it out.
ROOM_KEY = "general.pad"
# Metadata keys that number the parts of a set. They do not describe the whole checkpoint.
SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
# The metadata of a file that has none.
NO_METADATA: Mapping[str, MetadataValue] = MappingProxyType({})
# The smallest alignment that both GGUF's specification and safetensors' headers allow.
LEAST_ALIGNMENT = 8
_ALIGNMENTS = frozenset(1 << bit for bit in range(32))


class Sink(Protocol):
    """A destination for bytes."""

    def write(self, data: Bytes, /) -> object:
        """Append `data`."""
        ...

    def copy(self, span: FileRange, /) -> object:
        """Append a range of another file."""
        ...


class Layout(NamedTuple):
    """The description of a file before its tensors are written.

    `tensors` are in the order of their bytes; `offsets` are where each starts, from the start of
    the file; `nbytes` is the length of the whole file. `between` returns the bytes that follow the
    tensors written so far, from the CRC-32 of each, without the zeros before the next tensor; None
    if there are only zeros.
    """

    header: bytes
    tensors: tuple[TensorInfo, ...]
    offsets: tuple[int, ...]
    nbytes: int
    between: Callable[[Sequence[int]], bytes] | None = None


class Part(NamedTuple):
    """The position of a file in a set; `number` starts at 0, `tensors` is the total count."""

    number: int
    parts: int
    tensors: int


@runtime_checkable
class Format(Protocol):
    """A container format; each has one module and one line in `weightctl.formats.FORMATS`."""

    def sniff(self, file: Reader) -> bool:
        """Whether a file has this format, detected by its first bytes or its structure."""
        ...

    def read(self, file: Reader) -> Header:
        """Parse the header of one file; raises `FormatError` if it is invalid."""
        ...

    def unfit(
        self, tensors: Sequence[TensorInfo], metadata: Mapping[str, MetadataValue] = NO_METADATA, /
    ) -> list[str]:
        """Return a sentence for each tensor that a file with these metadata cannot store."""
        ...

    def layout(
        self,
        tensors: Sequence[TensorInfo],
        metadata: Mapping[str, MetadataValue],
        part: Part | None = None,
    ) -> Layout:
        """Describe the file for these tensors, before any of their bytes are read.

        `metadata` is that of the whole checkpoint. The first of several parts stores it; the others
        store only the keys that are needed to read them. Raises `ConversionError` for invalid
        metadata.
        """
        ...


def pad(offset: int, alignment: int) -> int:
    """Return the number of bytes from `offset` to the next multiple of `alignment`."""
    return -offset % alignment


def is_alignment(value: MetadataValue) -> bool:
    """Whether a value of `ALIGNMENT_KEY` is valid in GGUF: a power of two, stored as u32."""
    return value.type == "u32" and value.content in _ALIGNMENTS


def make_room(nbytes: int) -> MetadataValue:
    """Return the value of `ROOM_KEY` that leaves room for this number of bytes."""
    return MetadataValue("string", " " * nbytes)


def is_possible(shape: Sequence[int]) -> bool:
    """Whether a shape is possible: no negative sizes, and a product that fits the address space.

    Sizes of 0 are left out: a tensor without elements takes no bytes, whatever its other sizes.
    """
    return min(shape, default=0) >= 0 and prod(filter(None, shape)) < 1 << 60


def is_text(name: str) -> bool:
    """Whether a name can be encoded as UTF-8, which excludes lone surrogates."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def tied_names(
    metadata: Mapping[str, MetadataValue], tensors: Mapping[str, TensorInfo]
) -> dict[str, str]:
    """Return the tied names that huggingface_hub records: `{"lm_head.weight": "embed.weight"}`."""
    return {
        name: value.content
        for name, value in metadata.items()
        if value.type == TEXT and value.content in tensors and name not in tensors
    }


def write_in_order(
    layout: Layout, sink: Sink, pull: Callable[[TensorInfo], Iterable[Bytes | FileRange]]
) -> None:
    """Write a file from start to end; `pull` yields the bytes of a tensor in pieces.

    A piece can be a range of a file if the layout needs no CRC-32. Raises `ConversionError` if the
    number of bytes differs from the layout.
    """
    sink.write(layout.header)
    position = len(layout.header)
    checks: list[int] = []
    for info, offset in zip(layout.tensors, layout.offsets, strict=True):
        _write_between(layout, sink, checks, offset - position)
        written = check = 0
        for piece in pull(info):
            if not isinstance(piece, Bytes):
                sink.copy(piece)
                written += piece.nbytes
                continue
            sink.write(piece)
            written += memoryview(piece).nbytes
            if layout.between is not None:
                check = crc32(piece, check)
        checks.append(check)
        if written != info.nbytes:
            raise ConversionError(
                f"writing `{info.name}` produced {written} bytes instead of {info.nbytes}",
                hint="this is a bug in weightctl; please report it",
            )
        position = offset + info.nbytes
    _write_between(layout, sink, checks, layout.nbytes - position)


def _write_between(layout: Layout, sink: Sink, checks: Sequence[int], count: int) -> None:
    """Write the `count` bytes that follow the tensors with these CRC-32 checksums."""
    if layout.between is not None:
        seam = layout.between(checks)
        sink.write(seam)
        count -= len(seam)
    # In pieces, because a file can state an alignment of gigabytes.
    for start in range(0, count, 1 << 20):
        sink.write(bytes(min(count - start, 1 << 20)))
