"""Sharded checkpoints, written and put back together: a file for each rank, and a manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.sharding.plan import ShardPlan
    from weightctl.sharding.plan_file import read_rules
    from weightctl.sharding.planning import shard_plan
    from weightctl.sharding.possible import possible
    from weightctl.split import Grid
    from weightctl.write.shards.gathering import gather
    from weightctl.write.shards.save import SavedShards, save_shards

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
    "SavedShards": "weightctl.write.shards.save:SavedShards",
    "ShardPlan": "weightctl.sharding.plan:ShardPlan",
    "gather": "weightctl.write.shards.gathering:gather",
    "possible": "weightctl.sharding.possible:possible",
    "read_rules": "weightctl.sharding.plan_file:read_rules",
    "save_shards": "weightctl.write.shards.save:save_shards",
    "shard_plan": "weightctl.sharding.planning:shard_plan",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
