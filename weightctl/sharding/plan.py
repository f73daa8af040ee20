"""The plan of a sharded checkpoint: which part of each tensor every rank gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weightctl.formats.sharded.record import Shard, SourceShard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.split import Grid, Sharding
    from weightctl.weights.metadata import MetadataValue
    from weightctl.weights.source import Source

__all__ = ["ShardPlan", "ranks_of"]


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The content of each rank's file.

    `shardings` are by the names of the source's tensors, in its order, without tensors that the
    layout does not have. `ranks` has the tensors of each rank's file, in order. `format` is the
    file format, and `layout` is `ranks` or `vllm`. `tied` has further names of tensors. `notes` are
    messages for the user.
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
    """Return the tensors of each rank under their own names, with one piece each."""
    return tuple(
        tuple(
            Shard(info._replace(shape=shape), (SourceShard(name, part),), sharding.strategy)
            for name, sharding in shardings.items()
            if (part := sharding.parts[rank]) is not None
            for info in (source.header.tensors[name],)
            for shape in (sharding.shape(info.shape, rank) or (),)
        )
        for rank in range(grid.ranks)
    )
