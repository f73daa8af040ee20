"""Distributed checkpoints as torch writes them for Hugging Face: safetensors files with chunks.

Each file states where its chunks begin. Source: `torch/distributed/checkpoint/hf_storage.py` and
`_hf_utils.py`.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import FormatError, MissingFileError
from weightctl.formats.recognition import recognize_format
from weightctl.formats.safetensors import read
from weightctl.formats.training.chunks import (
    INCOMPLETE,
    ChunkBlock,
    ChunkedSource,
    ChunkedTree,
    StoredChunk,
)
from weightctl.formats.training.detection import SHARD
from weightctl.storage.files import open_reader, prepare
from weightctl.system.processes import without_collection
from weightctl.text.untyped import is_list, is_object
from weightctl.weights.info import Header, TensorInfo
from weightctl.weights.source import FileSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.weights.metadata import MetadataValue

_INFO, _OFFSETS, _VERSION = "DCP_SHARDING_INFO", "saved_offsets", "DCP_VERSION"


@without_collection()
def open_sharded_safetensors(directory: str, names: Sequence[str]) -> ChunkedSource:
    """Open the files `names` of a directory as one checkpoint.

    Raises `FormatError` if files are missing, or if chunks overlap or do not cover a tensor.
    """
    ranks = {int(shard["rank"]) for name in names if (shard := SHARD.fullmatch(name))}
    missing = sorted({*range(1, max(ranks) + 1)} - ranks)[:3]
    if missing:
        lost = ", ".join(f"shard-{rank:05d}-..." for rank in missing)
        text = f"files of the distributed checkpoint are missing: {lost}"
        raise MissingFileError(directory, None, text, hint=INCOMPLETE)
    paths = [os.path.join(directory, name) for name in sorted(names)]
    prepare(paths)
    files = [open_reader(path) for path in paths]
    found: dict[str, list[_Found]] = {}
    metadata: dict[str, MetadataValue] = {}
    for number, file in enumerate(files):
        recognize_format(file, "safetensors")
        header = read(file)
        metadata = {**header.metadata, **metadata}
        _add_chunks(found, number, header, FileSource(header, (file,)))
    tree = ChunkedTree(directory)
    for name, chunks in found.items():
        first = chunks[0]
        encoding = first.info.encoding
        if any(other.info.encoding != encoding for other in chunks):
            tree.problems.append(f"`{name}`: the files of the ranks store it with different types")
            continue
        shape = tuple(map(max, zip(*(each.block.ends for each in chunks), strict=True)))
        blocks = [(each.block, each.data) for each in chunks]
        tree.add_blocks(TensorInfo(name, shape, encoding), blocks, first.file, first.offset)
    kept = {key: value for key, value in metadata.items() if key not in {_INFO, _VERSION}}
    return tree.make_source(Header("dcp", (), {}, {}, kept), files)


class _Found(NamedTuple):
    """A chunk: its block of the tensor, its data, and its place and description in a file."""

    block: ChunkBlock
    data: StoredChunk
    file: int
    offset: int
    info: TensorInfo


def _add_chunks(
    found: dict[str, list[_Found]], number: int, header: Header, source: FileSource
) -> None:
    """Add the chunks of a file; `number` is that of the file."""
    stated = _read_offsets(header)
    for name, info in header.tensors.items():
        block = ChunkBlock(_offsets_of(header, stated, info), info.shape)
        known = found.setdefault(name, [])
        # Replicated tensors can be in the files of several ranks.
        if not known or known[0].block != block:
            offset = header.extents[name].offset
            known.append(_Found(block, StoredChunk(source, name), number, offset, info))


def _read_offsets(header: Header) -> dict[str, Any]:
    """Return what a file states about its chunks, by name; empty for a file with whole tensors."""
    stated = header.metadata.get(_INFO)
    if stated is None:
        return {}
    try:
        document: Any = json.loads(stated.content)
    except (ValueError, TypeError, RecursionError):
        document = None
    if not is_object(document):
        text = f"`{_INFO}` in its metadata is not a JSON object"
        raise FormatError(header.files[0], None, text, hint=INCOMPLETE)
    return document


def _offsets_of(header: Header, stated: dict[str, Any], info: TensorInfo) -> tuple[int, ...]:
    if not stated:
        return (0,) * len(info.shape)
    entry = stated.get(info.name)
    offsets = entry.get(_OFFSETS) if is_object(entry) else None
    is_valid = is_list(offsets) and len(offsets) == len(info.shape)
    if (
        not is_list(offsets)
        or not is_valid
        or not all(type(each) is int and 0 <= each < 1 << 60 for each in offsets)
    ):
        text = f"`{_INFO}` in its metadata does not state valid offsets of `{info.name}`"
        raise FormatError(header.files[0], None, text, hint=INCOMPLETE)
    return tuple(offsets)
