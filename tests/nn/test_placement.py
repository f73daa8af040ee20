from __future__ import annotations

from typing import Any

import pytest

from each import each
from weightctl import DeviceRef, DType
from weightctl.errors import GraphError, ShardingError
from weightctl.graph import Weight
from weightctl.nn.across_ranks import Shards, find_placement
from weightctl.split import Grid, Sharding, Whole, rowwise

FIRST, SECOND = DeviceRef.GPU(0), DeviceRef.GPU(1)


def test_devices_alone_are_all_ranks() -> None:
    placement = find_placement([FIRST, SECOND], None, 0)
    assert placement.grid == Grid(2)
    assert placement.is_whole
    assert [placement.device(rank) for rank in placement.ranks] == [FIRST, SECOND]


def test_a_process_has_the_ranks_from_its_first_on() -> None:
    placement = find_placement([FIRST, SECOND], Grid(2, 3), 4)
    assert not placement.is_whole
    assert {rank: placement.device(rank) for rank in placement.ranks} == {4: FIRST, 5: SECOND}


@each("devices", [[], ["tpu:0"], [FIRST, 1]], ids=str)
def test_what_is_not_a_device_is_refused(devices: list[Any]) -> None:
    with pytest.raises(ShardingError, match="is not a list of devices"):
        find_placement(devices, None, 0)


def test_layers_that_are_shared_out_are_refused() -> None:
    with pytest.raises(
        ShardingError, match="a graph cannot run layers of 2 pipeline parallel ranks"
    ):
        find_placement([FIRST, SECOND], Grid(1, 1, 2), 0)


def test_a_grid_that_processes_of_so_many_devices_cannot_make_up_is_refused() -> None:
    with pytest.raises(
        ShardingError,
        match="the 3 ranks of tp 3 x ep 1 cannot be divided into processes with 2 ranks each",
    ):
        find_placement([FIRST, SECOND], Grid(3), 0)


@each("first", [-2, 1, 4])
def test_a_rank_that_is_not_a_process_s_first_is_refused(first: int) -> None:
    with pytest.raises(ShardingError, match=f"cannot start at rank {first}"):
        find_placement([FIRST, SECOND], Grid(4), first)


def matrix() -> Weight:
    return Weight("matrix", DType.float32, (5, 4))


def test_a_weight_that_two_layers_use_has_one_shard_for_both() -> None:
    shards, weight = Shards(find_placement([FIRST, SECOND], None, 0)), matrix()
    sharding = rowwise(Whole("matrix", (5, 4), (1, 1)), 2)
    assert shards.of(weight, sharding, 1) is shards.of(weight, sharding, 1)
    assert shards.of(weight, sharding, 0) is not shards.of(weight, sharding, 1)


def test_ranks_of_other_groups_have_the_same_part_under_names_of_their_own() -> None:
    shards, weight = Shards(find_placement([FIRST] * 4, Grid(2, 2), 0)), matrix()
    sharding = rowwise(Whole("matrix", (5, 4), (1, 1)), 2)
    made = [shards.of(weight, sharding, rank) for rank in range(4)]
    assert [each.name for each in made] == [f"matrix.shard.{rank}" for rank in range(4)]
    assert [each.shape.sizes for each in made] == [(3, 4), (2, 4), (3, 4), (2, 4)]


def test_a_rank_that_has_nothing_of_a_weight_is_refused() -> None:
    shards = Shards(find_placement([FIRST, SECOND], None, 0))
    with pytest.raises(GraphError, match="`matrix` has no shard on rank 1"):
        shards.of(matrix(), Sharding("given", ((), None)), 1)
