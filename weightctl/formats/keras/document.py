"""The header of an HDF5 file as JSON, in which the process that parses the file returns it."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

from weightctl.dtype import ENCODINGS
from weightctl.errors import FormatError
from weightctl.formats.base import is_possible
from weightctl.formats.keras.blocks import BlockOfFile, DatasetBlocks
from weightctl.formats.keras.datasets import DAMAGED
from weightctl.weights.info import Extent, Header, Leaf, TensorInfo
from weightctl.weights.metadata import text

if TYPE_CHECKING:
    from weightctl.storage.base import Reader


def to_document(header: Header) -> dict[str, Any]:
    """Return a header as JSON values."""
    return {
        "tensors": [
            [info.name, info.shape, info.encoding.name, *_describe(header.extents[info.name])]
            for info in header.tensors.values()
        ],
        "metadata": {key: value.content for key, value in header.metadata.items()},
        "aliases": dict(header.aliases),
        "leaves": [[name, *leaf] for name, leaf in header.leaves.items()],
        "big_endian": header.big_endian,
        "notes": header.notes,
    }


def _describe(extent: Extent) -> tuple[int, str | None, Any]:
    held = None if extent.held is None else b64encode(extent.held).decode()
    blocks = extent.blocks
    return extent.offset, held, blocks.describe() if isinstance(blocks, DatasetBlocks) else None


def header_from(document: Any, file: Reader) -> Header:
    """Return the header of a file from JSON values; raises the `FormatError` that they state."""
    if "error" in document:
        offset, reason, hint = document["error"]
        raise FormatError(file.path, offset, reason, hint=hint)
    tensors: dict[str, TensorInfo] = {}
    extents: dict[str, Extent] = {}
    for name, shape, encoding, offset, held, blocks in document["tensors"]:
        info = TensorInfo(name, tuple(shape), ENCODINGS[encoding])
        raw = None if held is None else b64decode(held)
        is_within = raw is not None or blocks is not None or offset + info.nbytes <= file.size
        is_sized = raw is None or len(raw) == info.nbytes
        if not is_possible(info.shape) or not is_within or not is_sized:
            reason = f"the bytes of `{name}` are not in the file"
            raise FormatError(file.path, None, reason, hint=DAMAGED)
        tensors[name] = info
        extents[name] = Extent(0, offset, info.nbytes, None, raw, _read_blocks(info, blocks))
    return Header(
        format="keras",
        files=(file.path,),
        tensors=tensors,
        extents=extents,
        metadata={key: text(value) for key, value in document["metadata"].items()},
        aliases=document["aliases"],
        leaves={name: Leaf(kind, look) for name, kind, look in document["leaves"]},
        big_endian=document["big_endian"],
        notes=tuple(document["notes"]),
    )


def _read_blocks(info: TensorInfo, described: Any) -> DatasetBlocks | None:
    if described is None:
        return None
    sizes, filters, blocks = described
    places = {tuple(place): BlockOfFile(*where) for place, where in blocks}
    return DatasetBlocks(info, tuple(sizes), tuple(filters), places)
