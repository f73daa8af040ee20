"""Modules that know how they are cut for several ranks, which together compute what they do."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from weightctl.nn.module import Module

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.graph.weight import Weight

__all__ = ["Divisible"]


class Divisible(Module):
    """A module that says how its weights are cut so that its shards together give what it does.

    `Parallel` stands in its place and has the shards compute.
    """

    @abstractmethod
    def tensor_parallel(self, devices: int) -> Mapping[Weight, ShardingStrategy]:
        """Return how each weight is cut; raises `ShardingError` if a device would be empty."""

    def widths(self, devices: int) -> list[int] | None:
        """Return how long the last axis is of what each shard gives of the whole's.

        None if it is the sum of what they give that the whole does.
        """
        del devices
        return None

    def groups(self, count: int) -> Sequence[Divisible]:
        """Return copies that have each some of the experts, and whose sum is what this gives.

        Itself alone where it has no experts. Raises `ShardingError` for fewer experts than groups.
        """
        del count
        return [self]
