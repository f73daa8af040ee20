"""The records of a sharded checkpoint, as its plan and its manifest say it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.split import Grid, Part, Sharding
    from weightctl.weights.info import TensorInfo

__all__ = ["MANIFEST", "Manifest", "RankFile", "Shard", "SourceFingerprint", "SourceShard"]

# Beside the ranks' files, or directories.
MANIFEST = "manifest.json"


class SourceShard(NamedTuple):
    """A part of a tensor of the source, by its name there."""

    source: str
    part: Part


class Shard(NamedTuple):
    """A tensor of a rank's file: the bytes of its pieces one after the other, then zeros.

    `strategy` is how people call the way it is cut. `sha256` is that of its bytes, in hexadecimal;
    empty until it is written.
    """

    info: TensorInfo
    pieces: tuple[SourceShard, ...]
    strategy: str
    sha256: str = ""


class RankFile(NamedTuple):
    """The file of a rank, by its path below the directory of all, and the tensors in it."""

    path: str
    shards: tuple[Shard, ...]


class SourceFingerprint(NamedTuple):
    """The fingerprint of an input: names, sizes and times of its files, and its header.

    `header` is the SHA-256 of what the header says of tensors and metadata.
    """

    files: tuple[tuple[str, int, int], ...]
    header: str


class Manifest(NamedTuple):
    """What a sharded checkpoint says of itself.

    `tensors` are those of the source, in its order, and `shardings` say for each what every rank
    has of it. `aliases` are further names of them. `files` are by rank.
    """

    layout: str
    format: str
    grid: Grid
    source: SourceFingerprint
    tensors: Mapping[str, TensorInfo]
    shardings: Mapping[str, Sharding]
    aliases: Mapping[str, str]
    files: tuple[RankFile, ...]
