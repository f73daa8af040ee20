"""Weights that are cut for several devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.device import DeviceRef
from weightctl.dtype import DType
from weightctl.graph import ShardingStrategy, Weight

if TYPE_CHECKING:
    from weightctl.graph.graph import Strategy

F32 = DType.float32
TWO, THREE = (tuple(DeviceRef.GPU(number) for number in range(count)) for count in (2, 3))


def weight(*shape: Any, strategy: Strategy | None = None, **options: Any) -> Weight:
    return Weight("w", F32, shape, sharding_strategy=strategy, **options)


def shards_of(strategy: ShardingStrategy, *shape: int, **options: Any) -> list[Weight]:
    devices = [DeviceRef.GPU(number) for number in range(strategy.devices)]
    return weight(*shape, strategy=strategy, **options).shard(devices)
