"""How a weight is cut for several devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.graph.weight import Weight

__all__ = ["ShardingStrategy"]


class ShardingStrategy(Protocol):
    """A way to cut a weight into one shard for each of a number of devices."""

    @property
    def devices(self) -> int:
        """How many shards it makes."""
        ...

    def shard(self, weight: Weight, number: int, device: DeviceRef) -> Weight:
        """Return the shard of a weight with this number, on a device."""
        ...
