"""Sharded checkpoints, written and put back together: a file for each rank, and a manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.registry import loaded_on_use

if TYPE_CHECKING:
    from weightctl.shards.gathering import gather
    from weightctl.shards.save import SavedShards, save_shards
    from weightctl.split import Grid
    from weightctl.transforms.sharding.plan import ShardPlan
    from weightctl.transforms.sharding.plan_file import read_rules
    from weightctl.transforms.sharding.planning import shard_plan
    from weightctl.transforms.sharding.possible import possible

__all__ = [
    "Grid",
    "SavedShards",
    "ShardPlan",
    "gather",
    "possible",
    "read_rules",
    "save_shards",
    "shard_plan",
]

_NAMES = {
    "Grid": "weightctl.split:Grid",
    "SavedShards": "weightctl.shards.save:SavedShards",
    "ShardPlan": "weightctl.transforms.sharding.plan:ShardPlan",
    "gather": "weightctl.shards.gathering:gather",
    "possible": "weightctl.transforms.sharding.possible:possible",
    "read_rules": "weightctl.transforms.sharding.plan_file:read_rules",
    "save_shards": "weightctl.shards.save:save_shards",
    "shard_plan": "weightctl.transforms.sharding.planning:shard_plan",
}

__getattr__ = loaded_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
