"""The plan of a sharded checkpoint: the part of each tensor that every rank gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from weightctl.formats.sharded.records import Shard, SourceShard
from weightctl.split import part_shape
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.split import Grid, Part, Sharding
    from weightctl.weights.data import Source
    from weightctl.weights.metadata import MetadataValue


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The content of each rank's file.

    `shardings` maps the names of the source's tensors, in its order, to their shardings; tensors
    that the layout does not have are left out. `ranks` has the tensors of each rank's file, in
    order. `format` is the file format, and `layout` is `ranks` or `vllm`. `tied` maps further names
    to tensors. `notes` are messages for the user.
    """

    source: Source
    format: str
    layout: str
    grid: Grid
    shardings: Mapping[str, Sharding]
    ranks: tuple[tuple[Shard, ...], ...]
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict[str, "MetadataValue"])
    tied: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()


def ranks_of(
    source: Source, shardings: Mapping[str, Sharding], grid: Grid
) -> tuple[tuple[Shard, ...], ...]:
    """Return the tensors of each rank's file; each is a single shard of the tensor of its name."""
    found: list[list[Shard]] = [[] for _ in range(grid.ranks)]
    # Many tensors are split in the same way, and many ranks have the same part, so shapes are
    # computed once for each kind.
    kinds: dict[object, list[_RankShape]] = {}
    for name, sharding in shardings.items():
        info = source.header.tensors[name]
        kind = id(sharding), info.shape
        if kind not in kinds:
            kinds[kind] = _list_shapes(info.shape, sharding)
        own = info
        for part, shape, ranks in kinds[kind]:
            if shape != own.shape:
                own = TensorInfo(name, shape, info.encoding)
            shard = Shard(own, (SourceShard(name, part),), sharding.strategy)
            for rank in ranks:
                found[rank].append(shard)
    return tuple(map(tuple, found))


class _RankShape(NamedTuple):
    """A part of a tensor, its shape, and the ranks that have it."""

    part: Part
    shape: tuple[int, ...]
    ranks: tuple[int, ...]


def _list_shapes(whole: tuple[int, ...], sharding: Sharding) -> list[_RankShape]:
    ranks: dict[Part, list[int]] = {}
    for rank, part in enumerate(sharding.parts):
        if part is not None:
            ranks.setdefault(part, []).append(rank)
    return [_RankShape(part, part_shape(whole, part), tuple(of)) for part, of in ranks.items()]
