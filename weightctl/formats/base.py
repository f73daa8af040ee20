"""The interface of every container format, and the code that they share."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple, Protocol
from zlib import crc32

from weightctl.errors import ConversionError
from weightctl.weights.metadata import TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from weightctl.storage.base import Reader
    from weightctl.storage.byte_range import FileRange
    from weightctl.weights.info import Header, TensorInfo
    from weightctl.weights.metadata import MetadataValue

__all__ = [
    "ALIGNMENT_KEY",
    "LEAST_ALIGNMENT",
    "LEVELS_KEY",
    "SPLIT_KEYS",
    "Bytes",
    "Format",
    "Layout",
    "Part",
    "Sink",
    "is_alignment",
    "is_possible",
    "is_text",
    "pad",
    "tied_names",
    "write_in_order",
]

Bytes = bytes | bytearray | memoryview

# The metadata that says on which boundary, in bytes, tensors start. It is GGUF's own key; formats
# without one keep it too, so that it crosses them and a copy is aligned as its source is.
ALIGNMENT_KEY = "general.alignment"
# The metadata that says how the names of a PyTorch checkpoint were nested, in whatever format it is
# kept since (`weightctl.formats.pytorch.levels`).
LEVELS_KEY = "pytorch.levels"
# Where a file is one of several these say which; of the whole they say nothing.
SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
# GGUF's specification and safetensors' headers know no smaller one.
LEAST_ALIGNMENT = 8
_ALIGNMENTS = frozenset(1 << bit for bit in range(32))


class Sink(Protocol):
    """A destination of bytes."""

    def write(self, data: Bytes, /) -> object:
        """Append `data`."""
        ...

    def copy(self, span: FileRange, /) -> object:
        """Append a range of another file."""
        ...


class Layout(NamedTuple):
    """The description of a file before its tensors are written.

    `tensors` are in the order of their bytes; `offsets` are where each starts, from the start of
    the file; `nbytes` is the length of the whole file. `between` gives what stands after the
    tensors written so far, up to the next one or the end, from the CRC-32 of each; None if that is
    nothing but zeros.
    """

    header: bytes
    tensors: tuple[TensorInfo, ...]
    offsets: tuple[int, ...]
    nbytes: int
    between: Callable[[Sequence[int]], bytes] | None = None


class Part(NamedTuple):
    """The position of a file among several; `number` starts at 0, `tensors` counts those of all."""

    number: int
    parts: int
    tensors: int


class Format(Protocol):
    """A container format; each is one module and one line in `weightctl.formats.FORMATS`."""

    def sniff(self, file: Reader) -> bool:
        """Whether a file is of this format, as far as its first bytes or its outline show."""
        ...

    def read(self, file: Reader) -> Header:
        """Parse the header of one file; raises `FormatError` if it is invalid."""
        ...

    def unfit(self, tensors: Sequence[TensorInfo]) -> list[str]:
        """Return a sentence for each tensor that the format cannot store."""
        ...

    def layout(
        self,
        tensors: Sequence[TensorInfo],
        metadata: Mapping[str, MetadataValue],
        part: Part | None = None,
    ) -> Layout:
        """Describe the file that holds these tensors, before a byte of them is read.

        The metadata is of the whole; the first of several files keeps it, and the others only
        what they cannot be read without. Raises `ConversionError` for metadata that cannot be.
        """
        ...


def pad(offset: int, alignment: int) -> int:
    """Return the bytes from `offset` to the next multiple of `alignment`."""
    return -offset % alignment


def is_alignment(value: MetadataValue) -> bool:
    """Whether a value of `ALIGNMENT_KEY` is what GGUF asks for: a u32 power of two."""
    return value.type == "u32" and value.content in _ALIGNMENTS


def is_possible(shape: Sequence[int]) -> bool:
    """Whether a shape is one that arrays can have: no size below 0, no product beyond memory.

    A tensor without elements takes no bytes, so no file is too small for its other sizes.
    """
    return min(shape, default=0) >= 0 and prod(filter(None, shape)) < 1 << 60


def is_text(name: str) -> bool:
    """Whether a name can be written as UTF-8: whether it has no lone surrogates."""
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
    """Find the tied names that huggingface_hub records: `{"lm_head.weight": "embed.weight"}`."""
    return {
        name: value.content
        for name, value in metadata.items()
        if value.type == TEXT and value.content in tensors and name not in tensors
    }


def write_in_order(
    layout: Layout, sink: Sink, pull: Callable[[TensorInfo], Iterable[Bytes | FileRange]]
) -> None:
    """Write a file front to back; `pull` gives a tensor's bytes in pieces.

    A piece may be a range of a file where the layout asks for no CRC-32. Raises `ConversionError`
    if the bytes are not as many as the layout says.
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
    """Write the `count` bytes after the tensors whose CRC-32 are known."""
    if layout.between is not None:
        seam = layout.between(checks)
        sink.write(seam)
        count -= len(seam)
    # In pieces, since a file may ask for an alignment of gigabytes.
    for start in range(0, count, 1 << 20):
        sink.write(bytes(min(count - start, 1 << 20)))
