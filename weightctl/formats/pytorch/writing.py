"""Writing of PyTorch checkpoints: a zip file with the pickle of a state dict, and tensor data.

Source: APPNOTE.TXT 6.3.10; numbers in comments are its sections.
"""

from __future__ import annotations

from itertools import repeat
from math import prod
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from weightctl.errors import ConversionError
from weightctl.formats.base import ALIGNMENT_KEY, Layout, is_alignment, pad, tied_names
from weightctl.formats.pickles.records import Global, PickledCall
from weightctl.formats.pickles.writing import Persistent, emit
from weightctl.formats.pytorch.nesting import is_value, nest_leaves, parse_levels
from weightctl.formats.pytorch.plain import make_ordered_dict
from weightctl.formats.pytorch.records import STORAGE_CLASSES
from weightctl.weights.metadata import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from weightctl.formats.base import Part
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.metadata import MetadataValue

_LOCAL = Struct("<4s5H3I2H")  # 4.3.7
_DESCRIPTOR, _LARGE_DESCRIPTOR = Struct("<4s3I"), Struct("<4sI2Q")  # 4.3.9
_ENTRY = Struct("<4s6H3I5H2I")  # 4.3.12
_LARGE_END, _LOCATOR, _END = Struct("<4sQ2H2I4Q"), Struct("<4sIQI"), Struct("<4s4H2IH")  # 4.3.14-16
_EXTRA = Struct("<2sH")  # 4.5.1
_LARGE, _FILLING = b"\x01\x00", b"FB"
_TWO_SIZES = 20
# Readers take the name of the folder from the first member.
_FOLDER = "archive/"
_SHORT, _INT = 0xFFFF, 0xFFFFFFFF
_IN_DESCRIPTOR = 1 << 3  # 4.4.4
_STORED, _TIME, _DATE = 0, 0, 1 << 5 | 1  # the earliest date, in 1980
# The member with the metadata that is not part of the pickle.
RECORD = "extra/weightctl.json"
_VERSION = b"3\n"
_LEAST_ALIGNMENT = 64  # torch's own
# The limit of the alignment, because the padding between two tensors is held in memory.
_MOST_ALIGNMENT = 1 << 26


class ZipMember(NamedTuple):
    """A member of a zip file: its local header is at `start`, and its bytes are at `offset`.

    The CRC-32 is None if it is only known after the bytes are written.
    """

    name: str
    nbytes: int
    start: int
    offset: int
    crc: int | None

    @property
    def end(self) -> int:
        """The offset at which the next member can start."""
        return self.offset + self.nbytes + len(self.descriptor(0))

    @property
    def is_large(self) -> bool:
        """Whether the sizes take more than 32 bits."""
        return self.nbytes >= _INT

    @property
    def _flags(self) -> int:
        return _IN_DESCRIPTOR if self.crc is None else 0

    def header(self) -> bytes:
        """Return the local header, with padding up to the bytes."""
        name = self.name.encode()
        # If a descriptor follows, the header has no sizes, but it states whether they have 64 bits.
        size = 0 if self.crc is None else self.nbytes
        extra = _extra(_LARGE, Struct("<2Q").pack(size, size)) if self.is_large else b""
        filling = self.offset - self.start - _LOCAL.size - len(name) - len(extra)
        if filling:
            extra += _extra(_FILLING, bytes(filling - _EXTRA.size))
        return (
            _LOCAL.pack(
                b"PK\3\4", 45 if self.is_large else 20, self._flags, _STORED, _TIME, _DATE,
                self.crc or 0, *[_INT if self.is_large else size] * 2, len(name), len(extra),
            )
            + name
            + extra
        )  # fmt: skip

    def descriptor(self, crc: int) -> bytes:
        """Return the data descriptor, which follows the bytes; empty if the header has the CRC."""
        if self.crc is not None:
            return b""
        kind = _LARGE_DESCRIPTOR if self.is_large else _DESCRIPTOR
        return kind.pack(b"PK\7\10", crc, self.nbytes, self.nbytes)

    def entry(self, crc: int) -> bytes:
        """Return the entry in the central directory."""
        name = self.name.encode()
        large = [n for n in (self.nbytes, self.nbytes, self.start) if n >= _INT]
        extra = _extra(_LARGE, Struct(f"<{len(large)}Q").pack(*large)) if large else b""
        size = min(self.nbytes, _INT)
        version = 45 if large else 20
        return (
            _ENTRY.pack(
                b"PK\1\2", version, version, self._flags, _STORED, _TIME, _DATE, crc, size, size,
                len(name), len(extra), 0, 0, 0, 0, min(self.start, _INT),
            )
            + name
            + extra
        )  # fmt: skip


def _extra(kind: bytes, content: bytes) -> bytes:
    return _EXTRA.pack(kind, len(content)) + content


def place_member(
    name: str, nbytes: int, position: int, alignment: int = 1, crc: int | None = None
) -> ZipMember:
    """Return a member at `position` or after it, whose bytes are aligned.

    Its local header is extended with padding. If the padding would be too long for the header, the
    member starts later.
    """
    name = _FOLDER + name
    least = _LOCAL.size + len(name.encode()) + (_TWO_SIZES if nbytes >= _INT else 0)
    gap, filling = 0, pad(position + least, alignment)
    if 0 < filling < _EXTRA.size:
        filling += alignment
    if filling > _SHORT - _TWO_SIZES:
        gap, filling = filling % alignment, 0
    start = position + gap
    return ZipMember(name, nbytes, start, start + least + filling, crc)


def directory(members: Iterable[ZipMember], crcs: Iterator[int], start: int) -> bytes:
    """Return the end of a zip file: the central directory, which is at `start`, and end records.

    `crcs` are the CRC-32 of the members whose `crc` is None.
    """
    entries = [m.entry(next(crcs) if m.crc is None else m.crc) for m in members]
    count, length = len(entries), sum(map(len, entries))
    if count >= _SHORT or length >= _INT or start >= _INT:
        rest = _LARGE_END.size - 12  # what follows the record's own length
        entries += [
            _LARGE_END.pack(b"PK\6\6", rest, 45, 45, 0, 0, count, count, length, start),
            _LOCATOR.pack(b"PK\6\7", 0, start + length, 1),
        ]
    count, length, start = min(count, _SHORT), min(length, _INT), min(start, _INT)
    entries.append(_END.pack(b"PK\5\6", 0, 0, count, count, length, start, 0))
    return b"".join(entries)


def unfit(tensors: Sequence[TensorInfo]) -> list[str]:
    """Return a sentence for each tensor that PyTorch checkpoints cannot store."""
    return [
        f"`{info.name}` is stored as {problem}" for info in tensors if (problem := _problem(info))
    ]


def _problem(info: TensorInfo) -> str:
    encoding = info.encoding
    if not encoding.is_known:
        return f"{encoding.name}, which weightctl cannot write"
    name = encoding.ids.get("pytorch")
    if name is None:
        return f"{encoding.name}, which PyTorch does not support"
    if str(name).startswith(("qint", "quint")):
        return "quantized values with a scale, which weightctl cannot write"
    if encoding.block > 1 and info.row % encoding.block:
        return (
            f"{encoding.name} with rows of {info.row} elements; PyTorch stores these elements in "
            "pairs"
        )
    return ""


def layout(
    tensors: Sequence[TensorInfo], metadata: Mapping[str, MetadataValue], part: Part | None = None
) -> Layout:
    """Describe the zip file of a state dict, with tensor data on multiples of the alignment.

    The alignment is that of the metadata, and at least 64 bytes. Each of several parts has a flat
    dict, and the first has the metadata of the whole checkpoint. Raises `ConversionError` for an
    alignment of more than 64 MiB.
    """
    root, rest = _state(tensors, metadata, part)
    return _describe(root, rest, tensors, _boundary(metadata))


def whole_tensor_layout(info: TensorInfo) -> Layout:
    """Describe the zip file of a single tensor, which is the root object of the pickle."""
    return _describe(_tensor(info, "0"), {}, (info,), _LEAST_ALIGNMENT)


def _describe(
    root: Any, rest: Mapping[str, MetadataValue], tensors: Sequence[TensorInfo], boundary: int
) -> Layout:
    """Describe the zip file of an object with these tensors, and `rest` as its metadata."""
    stated = {"data.pkl": emit(root), "byteorder": b"little"}
    if rest:
        stated[RECORD] = to_json(rest).encode()
    header = bytearray()
    members: list[ZipMember] = []
    for name, content in stated.items():
        members.append(place_member(name, len(content), len(header), crc=crc32(content)))
        header += members[-1].header() + content
    first = len(members)
    position = len(header)
    for number, info in enumerate(tensors):
        members.append(place_member(f"data/{number}", info.nbytes, position, boundary))
        position = members[-1].end
    members.append(place_member("version", len(_VERSION), position, crc=crc32(_VERSION)))
    position = members[-1].end

    def between(crcs: Sequence[int]) -> bytes:
        number = first + len(crcs)
        before, behind = members[number - 1], members[number]
        ending = before.descriptor(crcs[-1]) if crcs else b""
        seam = ending + bytes(behind.start - before.end) + behind.header()
        if len(crcs) < len(tensors):
            return seam
        return seam + _VERSION + directory(members, iter(crcs), position)

    nbytes = position + len(directory(members, repeat(0), position))
    offsets = tuple(member.offset for member in members[first:-1])
    return Layout(bytes(header), tuple(tensors), offsets, nbytes, between)


def _boundary(metadata: Mapping[str, MetadataValue]) -> int:
    stated = metadata.get(ALIGNMENT_KEY)
    # An invalid alignment of GGUF has no effect in PyTorch.
    if stated is None or not is_alignment(stated):
        return _LEAST_ALIGNMENT
    if stated.content > _MOST_ALIGNMENT:
        raise ConversionError(
            f"the alignment of {stated.content} bytes is too large for a PyTorch file",
            hint=f"use --align {_LEAST_ALIGNMENT} (align={_LEAST_ALIGNMENT} in Python), as "
            "torch does",
        )
    return max(_LEAST_ALIGNMENT, int(stated.content))


def _state(
    tensors: Sequence[TensorInfo], metadata: Mapping[str, MetadataValue], part: Part | None
) -> tuple[Any, dict[str, MetadataValue]]:
    """Return the root object of the pickle, and the metadata that is stored beside the pickle."""
    leaves = {info.name: _tensor(info, str(number)) for number, info in enumerate(tensors)}
    levels = parse_levels(metadata)
    tied = {
        name: leaves[tensor]
        for name, tensor in tied_names(metadata, {info.name: info for info in tensors}).items()
        if not is_value(levels.get(name))
    }
    if part is not None:
        root, used = {**leaves, **tied}, frozenset[str]()
    else:
        root, used = nest_leaves({**leaves, **tied}, metadata)
    if part is not None and part.number > 0:
        return root, {}
    return root, {key: metadata[key] for key in metadata if key not in used and key not in tied}


def torch_shape(info: TensorInfo) -> tuple[int, ...]:
    """Return the shape of a tensor in torch, which counts bytes if they hold two values each."""
    if info.encoding.block == 1:
        return info.shape
    return (*info.shape[:-1], info.shape[-1] // info.encoding.block)


def _tensor(info: TensorInfo, key: str) -> PickledCall:
    """Return the record of a contiguous tensor with a storage of its own."""
    dtype, shape = str(info.encoding.ids.get("pytorch", "")), torch_shape(info)
    strides = tuple(prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape)))
    named = STORAGE_CLASSES.get(info.encoding.name)
    kind = Global("torch.storage", "UntypedStorage") if named is None else Global("torch", named)
    count = info.nbytes if named is None else info.size
    storage = Persistent(("storage", kind, key, "cpu", count))
    arguments = (storage, 0, shape, strides, False, make_ordered_dict())
    if named is not None:
        return PickledCall(Global("torch._utils", "_rebuild_tensor_v2"), arguments)
    return PickledCall(
        Global("torch._utils", "_rebuild_tensor_v3"), (*arguments, Global("torch", dtype))
    )
