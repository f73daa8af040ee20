"""Records of a sharded checkpoint, shared by its plan and its manifest; fingerprints of inputs."""

from __future__ import annotations

import hashlib
import json
import os
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.system.files import relative_name
from weightctl.weights.metadata import as_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.split import Grid, Part, Sharding
    from weightctl.storage.base import Reader
    from weightctl.weights.data import Source
    from weightctl.weights.info import Header, TensorInfo


class SourceShard(NamedTuple):
    """A part of a tensor of the source, with the name of the tensor there."""

    source: str
    part: Part


class Shard(NamedTuple):
    """A tensor of a rank's file: the bytes of its pieces one after another, then zeros.

    `strategy` is the name of the strategy that splits it. `sha256` is the digest of its bytes in
    hexadecimal, empty until it is written.
    """

    info: TensorInfo
    pieces: tuple[SourceShard, ...]
    strategy: str
    sha256: str = ""


class RankFile(NamedTuple):
    """The file of a rank: its path in the common directory, and its tensors."""

    path: str
    shards: tuple[Shard, ...]


class SourceFingerprint(NamedTuple):
    """The fingerprint of an input: names, sizes and times of its files, and its header.

    `header` is the SHA-256 of the tensors and metadata in the header.
    """

    files: tuple[tuple[str, int, int], ...]
    header: str


class Manifest(NamedTuple):
    """The content of the manifest of a sharded checkpoint.

    `tensors` are those of the source, in its order. `shardings` has the part of each tensor on each
    rank. `aliases` are further names of tensors. `files` are by rank.
    """

    layout: str
    format: str
    grid: Grid
    source: SourceFingerprint
    tensors: Mapping[str, TensorInfo]
    shardings: Mapping[str, Sharding]
    aliases: Mapping[str, str]
    files: tuple[RankFile, ...]


def fingerprint_source(source: Source) -> SourceFingerprint:
    """Return the fingerprint of a source; without files, it is that of the header only.

    Sizes and times are those of the open files, even if the paths now refer to other files.
    """
    found = hashlib.sha256()
    for line in _lines(source.header):
        found.update(json.dumps(line, default=repr).encode() + b"\n")
    return SourceFingerprint(_files(source.files), found.hexdigest())


def _files(files: Sequence[Reader]) -> tuple[tuple[str, int, int], ...]:
    """Return the names, sizes and times of files; names are relative to the common directory."""
    if not files:
        return ()
    paths = [os.path.abspath(file.path) for file in files]
    directory = os.path.commonpath([os.path.dirname(path) for path in paths])
    return tuple(
        (relative_name(path, directory), file.size, file.written)
        for path, file in zip(paths, files, strict=True)
    )


def _lines(header: Header) -> Iterator[Any]:
    """Yield the content of a header: tensors, their extents, aliases, and metadata."""
    for name, info in header.tensors.items():
        origin = header.origins.get(name)
        yield (
            name,
            info.shape,
            info.encoding.name,
            header.extents[name][:3],
            origin and origin.steps,
        )
    yield from chain(
        header.aliases.items(),
        ((key, value.type, as_json(value.content)) for key, value in header.metadata.items()),
    )
