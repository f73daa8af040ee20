"""Modules cut for several devices: copies with a shard of each weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from runs import run
from small_modules import ROWS, Block, Scale, Stack, random_values
from weightctl import DeviceRef, DType
from weightctl.device import CPU
from weightctl.errors import GraphError, ShardingError
from weightctl.graph import Graph, ShardingStrategy, Weight, ops
from weightctl.nn import MLP, Attention, GatedMLP, Linear, MixtureOfExperts, Module

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.graph import Value

DEVICES = [DeviceRef.GPU(0), DeviceRef.GPU(1)]
CPUS = [CPU] * 2


def loaded(module: Module) -> dict[str, Any]:
    """Return numbers for the weights of a module, which it has then."""
    module.load_state_dict(random_values(module))
    return module.state_dict()


def x(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def sum_of(shards: Sequence[Module]) -> Callable[[Value], Value]:
    return lambda value: ops.allreduce([shard(value) for shard in shards])[0]


@each(
    "make",
    [
        lambda: Attention(8, 4, kv_heads=2, bias=True),
        lambda: Attention(8, 4, kv_heads=2, fused=True, bias=True, transposed=True),
        lambda: Attention(8, 4, kv_heads=2, fused=True, norm_epsilon=1e-5, norms_apart=True),
        lambda: MLP(8, 5, "gelu"),
        lambda: GatedMLP(8, 5, "silu", fused=True, bias=True),
        lambda: MixtureOfExperts(8, 6, "silu", count=3, used=2),
    ],
    ids=[
        "attention", "transposed fused attention", "fused normed attention", "mlp", "fused mlp",
        "mixture",
    ],
)  # fmt: skip
def test_the_shards_of_a_layer_cut_by_its_own_rule_sum_up_to_what_it_gives(
    make: Callable[[], Any],
) -> None:
    layer = make()
    weights = loaded(layer)
    given = x(2, 3, 8)
    layer.sharding_strategy = ShardingStrategy.tensor_parallel(layer, 2)
    together = run(sum_of(layer.shard(CPUS)), given, weights=weights)
    whole = run(layer, given)
    # Outputs reach hundreds, and the order of sums depends on the processor.
    assert np.abs(together - whole).max() < 1e-6 * np.abs(whole).max()


def test_the_shards_of_a_linear_layer_give_some_of_the_outputs_each() -> None:
    linear = Linear(4, 5, bias=True)
    weights = loaded(linear)
    linear.sharding_strategy = ShardingStrategy.tensor_parallel(linear, 2)
    first, second = linear.shard(CPUS)
    parts = run(lambda value: (first(value), second(value)), x(2, 4), weights=weights)
    assert [part.shape for part in parts] == [(2, 3), (2, 2)]
    assert np.allclose(np.concatenate(parts, axis=-1), run(linear, x(2, 4)))


def test_a_shard_is_a_copy_on_its_device_whose_weights_are_shards_of_the_module_s() -> None:
    stack = Stack()
    stack.sharding_strategy = ShardingStrategy.rowwise(2)
    shards = stack.shard(DEVICES)
    for number, (shard, device) in enumerate(zip(shards, DEVICES, strict=True)):
        assert type(shard) is Stack
        weight = shard.layers[1].up.weight
        assert weight.shard_of is stack.layers[1].up.weight
        assert (weight.name, weight.device) == (f"layers.1.up.weight.shard.{number}", device)
        assert weight.shape.sizes == (2,)
    assert stack.layers[1].up.weight.shape.sizes == (4,)
    assert len(shards[0].layers) == 3


def test_what_a_shard_is_called_with_runs_as_it_does_in_the_module() -> None:
    stack = Stack()
    weights = loaded(stack)
    stack.sharding_strategy = ShardingStrategy.replicate(1)
    (shard,) = stack.shard([CPU])
    given = x(2, 4)
    assert np.array_equal(run(shard, given, weights=weights), run(stack, given))


def test_the_innermost_strategy_counts_and_a_weight_s_own_before_any_other() -> None:
    stack = Stack()
    stack.sharding_strategy = ShardingStrategy.rowwise(2)
    stack.layers[0].sharding_strategy = ShardingStrategy.replicate(2)
    stack.layers[0].down.weight.sharding_strategy = ShardingStrategy.axiswise(-1, 2)
    shard, _ = stack.shard(DEVICES)
    sizes = {
        "head": shard.head, "up": shard.layers[0].up,
        "down": shard.layers[0].down, "other": shard.layers[1].up,
    }  # fmt: skip
    found = {name: layer.weight.shape.sizes[0] for name, layer in sizes.items()}
    assert found == {"head": 2, "up": 4, "down": 2, "other": 2}
    assert stack.head.weight.sharding_strategy is None


def test_a_module_can_be_cut_again_for_another_number_of_devices() -> None:
    block = Block()
    for count in (2, 4):
        block.sharding_strategy = ShardingStrategy.rowwise(count)
        assert len(block.shard([CPU] * count)) == count


class Tied(Module):
    """Two layers with one weight, and a list of both."""

    def __init__(self) -> None:
        self.first, self.second = Scale(), Scale()
        self.second.set_shared_weight("weight", self.first.weight)
        self.both = [self.first, self.second]

    def __call__(self, x: Value) -> Value:
        for scale in self.both:
            x = scale(x)
        return x


def test_a_weight_that_two_layers_share_is_one_shard_of_both_in_lists_too() -> None:
    tied = Tied()
    tied.sharding_strategy = ShardingStrategy.rowwise(2)
    for shard in tied.shard(DEVICES):
        assert shard.first.weight is shard.second.weight
        assert shard.both == [shard.first, shard.second]
    assert tied.both == [tied.first, tied.second]


def test_weights_that_were_made_with_names_of_their_own_keep_them() -> None:
    scale = Scale()
    scale.weight = Weight("blk.0.scale", DType.float32, (4,))
    scale.sharding_strategy = ShardingStrategy.rowwise(2)
    assert scale.shard(CPUS)[1].weight.name == "blk.0.scale.shard.1"


def test_a_weight_without_a_strategy_is_refused_by_name() -> None:
    stack = Stack()
    stack.head.sharding_strategy = ShardingStrategy.rowwise(2)
    with pytest.raises(GraphError, match=r"`layers.0.up.weight` has no sharding_strategy"):
        stack.shard(DEVICES)


def test_a_strategy_for_another_number_of_devices_is_refused() -> None:
    block = Block()
    block.sharding_strategy = ShardingStrategy.rowwise(3)
    with pytest.raises(
        GraphError, match=r"the sharding strategy of `up\.weight` is for 3 devices, but got 2"
    ):
        block.shard(DEVICES)


def test_no_device_is_refused() -> None:
    with pytest.raises(GraphError, match="at least one device is needed"):
        Block().shard([])


def test_what_cannot_be_cut_is_refused_by_name_and_with_the_counts_that_work() -> None:
    block = Block()
    block.sharding_strategy = ShardingStrategy.rowwise(5)
    with pytest.raises(ShardingError, match=r"(?s)`up.weight`.*1 to 4 ranks work"):
        block.shard([CPU] * 5)


def test_a_shard_cannot_be_cut_further() -> None:
    block = Block()
    block.sharding_strategy = ShardingStrategy.rowwise(2)
    shard, _ = block.shard(DEVICES)
    with pytest.raises(GraphError, match="is already a shard and cannot be sharded again"):
        shard.shard(DEVICES)


def test_shards_are_not_weights_that_a_model_loads() -> None:
    block = Block()
    block.sharding_strategy = ShardingStrategy.rowwise(2)
    shard, _ = block.shard(CPUS)
    assert shard.raw_state_dict() == {}


def test_a_module_that_was_put_on_devices_with_a_strategy_is_cut_by_it() -> None:
    linear = Linear(4, 6)
    linear.to(*DEVICES, sharding_strategy=ShardingStrategy.columnwise(2))
    assert linear.weight.device == DEVICES[0]
    shards = linear.shard(DEVICES)
    assert [shard.weight.device for shard in shards] == DEVICES
    assert [shard.weight.shape.sizes for shard in shards] == [(6, 2), (6, 2)]


def test_to_refuses_a_strategy_for_another_number_of_devices_and_changes_nothing() -> None:
    linear = Linear(4, 6)
    with pytest.raises(ValueError, match="is placed on 2 devices, but the strategy is for 3"):
        linear.to(*DEVICES, sharding_strategy=ShardingStrategy.rowwise(3))
    assert linear.weight.device == CPU
    assert linear.sharding_strategy is None


class Halves(Module):
    """A product of which two devices compute a half each."""

    def __init__(self) -> None:
        self.linear = Linear(4, 6)
        self.linear.sharding_strategy = ShardingStrategy.rowwise(2)
        self.parts = self.linear.shard(CPUS)

    def __call__(self, x: Value) -> Value:
        return ops.allgather([part(x) for part in self.parts])[0]


def test_a_module_may_hold_its_own_shards_and_loads_the_whole() -> None:
    halves = Halves()
    weights = loaded(halves)
    assert list(weights) == ["linear.weight"]
    assert np.allclose(run(halves, x(2, 4)), x(2, 4) @ weights["linear.weight"].T)
    with Graph("halves", [ROWS]) as graph:
        halves(graph.inputs[0])
    assert list(graph.weights_by_name) == ["linear.weight.shard.0", "linear.weight.shard.1"]


def test_a_module_with_its_shards_stays_on_their_devices() -> None:
    halves = Halves()
    vars(halves)["first"] = halves.parts[0]
    with pytest.raises(
        GraphError, match="is already sharded across several devices and cannot be moved"
    ):
        halves.to(DEVICES[0])
