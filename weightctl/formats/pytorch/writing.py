"""Writing of a PyTorch checkpoint: a zip of tensors' bytes and the pickle of a state dict."""

from __future__ import annotations

from itertools import repeat
from math import prod
from typing import TYPE_CHECKING, Any
from zlib import crc32

from weightctl.errors import ConversionError
from weightctl.formats.base import ALIGNMENT_KEY, Layout, is_alignment, tied_names
from weightctl.formats.pickles.emit import Persistent, emit
from weightctl.formats.pickles.records import Global, PickledCall
from weightctl.formats.pytorch.levels import is_value, nest_leaves, parse_levels
from weightctl.formats.pytorch.plain import make_ordered_dict
from weightctl.formats.pytorch.zipped import ZipMember, directory, place_member
from weightctl.weights.metadata import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.formats.base import Part
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.metadata import MetadataValue

__all__ = ["RECORD", "layout", "unfit"]

# Where the metadata stands that is not a part of the checkpoint itself.
RECORD = "extra/weightctl.json"
_VERSION = b"3\n"
_LEAST_ALIGNMENT = 64  # torch's own
# What stands between two tensors passes through memory.
_MOST_ALIGNMENT = 1 << 26
_STORAGES = {
    "float64": "DoubleStorage", "float32": "FloatStorage", "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage", "int64": "LongStorage", "int32": "IntStorage",
    "int16": "ShortStorage", "int8": "CharStorage", "uint8": "ByteStorage", "bool": "BoolStorage",
    "complex64": "ComplexFloatStorage", "complex128": "ComplexDoubleStorage",
}  # fmt: skip


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
        return f"{encoding.name} with rows of {info.row} elements; PyTorch stores pairs"
    return ""


def layout(
    tensors: Sequence[TensorInfo], metadata: Mapping[str, MetadataValue], part: Part | None = None
) -> Layout:
    """Describe the zip that holds a state dict: its data starts on multiples of the alignment.

    That is the metadata's, and 64 bytes at least. Of several files each has a flat dict, and the
    first all that the metadata says of the whole. Raises `ConversionError` for an alignment beyond
    64 MiB.
    """
    root, rest = _state(tensors, metadata, part)
    stated = {"data.pkl": emit(root), "byteorder": b"little"}
    if rest:
        stated[RECORD] = to_json(rest).encode()
    header = bytearray()
    members: list[ZipMember] = []
    for name, content in stated.items():
        members.append(place_member(name, len(content), len(header), crc=crc32(content)))
        header += members[-1].header() + content
    first = len(members)
    position, boundary = len(header), _boundary(metadata)
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
    # One that cannot be is none of PyTorch's business.
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
    """Return what goes into the pickle, and the metadata that goes beside it."""
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


def _tensor(info: TensorInfo, key: str) -> PickledCall:
    """Return the record of a contiguous tensor that has a storage for itself."""
    dtype = str(info.encoding.ids.get("pytorch", ""))
    shape = info.shape
    if info.encoding.block > 1:
        # PyTorch counts the bytes of pairs.
        shape = (*shape[:-1], shape[-1] // info.encoding.block)
    strides = tuple(prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape)))
    named = _STORAGES.get(dtype)
    kind = Global("torch.storage", "UntypedStorage") if named is None else Global("torch", named)
    count = info.nbytes if named is None else info.size
    storage = Persistent(("storage", kind, key, "cpu", count))
    arguments = (storage, 0, shape, strides, False, make_ordered_dict())
    if named is not None:
        return PickledCall(Global("torch._utils", "_rebuild_tensor_v2"), arguments)
    return PickledCall(
        Global("torch._utils", "_rebuild_tensor_v3"), (*arguments, Global("torch", dtype))
    )
