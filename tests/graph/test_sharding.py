"""Strategies that cut weights, and the shards that they give."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from each import each
from sharded_weights import F32, THREE, TWO, shards_of, weight
from weightctl.device import DeviceRef
from weightctl.dtype import DType, QuantizationEncoding
from weightctl.errors import EncodingError, GraphError, ShardingError
from weightctl.graph import Graph, ShardingStrategy, TensorType, Weight, ops
from weightctl.split import Cut, Sharding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightctl.graph.graph import Strategy


QKV = {"heads": 4, "kv_heads": 2, "head_dim": 3}
CUTS: list[tuple[ShardingStrategy, tuple[int, ...], list[tuple[int, ...]]]] = [
    (ShardingStrategy.rowwise(2), (5, 3), [(3, 3), (2, 3)]),
    (ShardingStrategy.rowwise(3), (7,), [(3,), (2,), (2,)]),
    (ShardingStrategy.columnwise(2), (5, 3), [(5, 2), (5, 1)]),
    (ShardingStrategy.replicate(3), (5, 3), [(5, 3)] * 3),
    (ShardingStrategy.replicate(2), (), [()] * 2),
    (ShardingStrategy.axiswise(2, 2), (2, 3, 5), [(2, 3, 3), (2, 3, 2)]),
    (ShardingStrategy.axiswise(-2, 3), (2, 3, 5), [(2, 1, 5)] * 3),
    (ShardingStrategy.stacked_qkv(2, **QKV, axis=-1), (5, 24), [(5, 12)] * 2),
    (ShardingStrategy.head_aware_columnwise(2, heads=4, head_dim=2, axis=-1), (5, 8), [(5, 4)] * 2),
    (ShardingStrategy.gate_up(3, axis=-1), (2, 6), [(2, 2)] * 3),
    (ShardingStrategy.segmented(2, [3, 2], axis=-1), (4, 5), [(4, 3), (4, 2)]),
    (ShardingStrategy.stacked_qkv(2, **QKV), (24, 5), [(12, 5)] * 2),
    (ShardingStrategy.stacked_qkv(4, **QKV), (24, 5), [(9, 5)] * 4),
    (ShardingStrategy.stacked_qkv(2, **QKV, axis=1), (5, 24), [(5, 12)] * 2),
    (ShardingStrategy.head_aware_columnwise(3, heads=4, head_dim=2), (5, 8),
     [(5, 4), (5, 2), (5, 2)]),
    (ShardingStrategy.head_aware_columnwise(2, heads=6, kv_heads=3, head_dim=2), (5, 12),
     [(5, 8), (5, 4)]),
    (ShardingStrategy.gate_up(2), (6, 5), [(4, 5), (2, 5)]),
    (ShardingStrategy.gate_up(3, axis=1), (2, 6), [(2, 2)] * 3),
    (ShardingStrategy.segmented(2, [3, 2]), (5, 4), [(3, 4), (2, 4)]),
    (ShardingStrategy.expert_parallel(2), (3, 4, 4), [(2, 4, 4), (1, 4, 4)]),
    (ShardingStrategy.rowwise(1), (3, 4), [(3, 4)]),
]  # fmt: skip


@each("strategy, shape, expected", CUTS, ids=str)
def test_each_shard_has_its_shape_before_there_is_a_graph(
    strategy: ShardingStrategy, shape: tuple[int, ...], expected: list[tuple[int, ...]]
) -> None:
    assert [shard.shape.sizes for shard in shards_of(strategy, *shape)] == expected


def test_a_shard_says_what_it_is_a_part_of() -> None:
    whole = weight(5, 3, strategy=ShardingStrategy.rowwise(2), align=64)
    shards = whole.shard(TWO)
    assert [shard.device for shard in shards] == [*TWO]
    assert [shard.shard_idx for shard in shards] == [0, 1]
    assert all(shard.shard_of is whole for shard in shards)
    assert [shard.part for shard in shards] == [(Cut(0, ((0, 3),)),), (Cut(0, ((3, 5),)),)]
    assert {(shard.dtype, shard.align, shard.sharding_strategy) for shard in shards} == {
        (F32, 64, None)
    }
    assert (whole.shard_idx, whole.shard_of, whole.part) == (None, None, None)


def test_the_query_heads_of_a_shard_come_with_the_keys_that_they_look_at() -> None:
    _, second = shards_of(ShardingStrategy.stacked_qkv(2, **QKV), 24, 5)
    assert second.part == (Cut(0, ((6, 12), (15, 18), (21, 24))),)


def test_a_shard_is_called_as_the_whole_until_it_has_a_name_of_its_own() -> None:
    whole = weight(4, 2, strategy=ShardingStrategy.rowwise(2))
    first, second = whole.shard(TWO)
    whole.name = "layers.0.w"
    second.name = "mine"
    assert (first.name, second.name) == ("layers.0.w.shard.0", "mine")
    assert repr(first) == "Weight('layers.0.w.shard.0', float32[2, 2] on gpu:0)"


@each("count", [1, 3])
def test_the_devices_must_be_as_many_as_the_strategy_is_for(count: int) -> None:
    whole = weight(4, 2, strategy=ShardingStrategy.rowwise(2))
    with pytest.raises(
        GraphError, match=f"the sharding strategy of `w` is for 2 devices, but got {count}"
    ):
        whole.shard(THREE[:count])


def test_devices_are_devices() -> None:
    whole = weight(4, 2, strategy=ShardingStrategy.rowwise(2))
    with pytest.raises(GraphError, match="0 is not a device"):
        whole.shard(DeviceRef.GPU(0))  # type: ignore[arg-type]  # it is two things itself


def test_a_shard_cannot_be_sharded_further_by_any_way() -> None:
    shard, _ = shards_of(ShardingStrategy.rowwise(2), 4, 2)
    shard.sharding_strategy = ShardingStrategy.rowwise(2)
    for further in (
        lambda: shard.shard(TWO),
        lambda: shard.part_for((), 0, TWO[0]),
        lambda: ShardingStrategy.rowwise(2).shard(shard, 0, TWO[0]),
    ):
        with pytest.raises(
            GraphError, match=r"`w\.shard\.0` is already a shard and cannot be sharded again"
        ):
            further()


def test_the_name_of_a_strategy_is_none() -> None:
    named: Any = "rowwise"
    with pytest.raises(
        GraphError, match="a sharding_strategy must be a ShardingStrategy, not 'rowwise'"
    ):
        weight(4, 2, strategy=named).shard(TWO)


@each("count", [0, -1, True, 2.0, "2"])
def test_a_number_of_devices_is_at_least_one(count: Any) -> None:
    with pytest.raises(ShardingError, match="is not a valid number of devices"):
        ShardingStrategy.rowwise(count)


REFUSED: list[tuple[ShardingStrategy, tuple[int, ...], str, str]] = [
    (
        ShardingStrategy.rowwise(4),
        (3, 8),
        r"`w` of shape \[3, 8\] cannot be split along axis 0 across 4 ranks",
        "1 to 3 ranks work",
    ),
    (ShardingStrategy.columnwise(3), (8, 2), "along axis 1", "1 or 2 ranks work"),
    (ShardingStrategy.columnwise(2), (8,), r"`w` of shape \[8\] has no axis 1", "`replicate`"),
    (ShardingStrategy.axiswise(-3, 2), (8, 2), "has no axis -3", "`replicate`"),
    (
        ShardingStrategy.stacked_qkv(3, **QKV),
        (24, 5),
        r"the model has 4 query heads and 2 KV heads \(head size 3\)",
        "1, 2 or 4 ranks work",
    ),
    (
        ShardingStrategy.stacked_qkv(2, **QKV),
        (25, 5),
        r"it has 25 rows, but 4 \+ 2 x 2 heads of 3 need 24",
        "",
    ),
    (
        ShardingStrategy.stacked_qkv(2, heads=5, kv_heads=3, head_dim=2),
        (22, 5),
        "5 query heads cannot be divided evenly among 3 KV heads",
        "",
    ),
    (
        ShardingStrategy.stacked_qkv(2, heads=12, kv_heads=0, head_dim=2),
        (24, 5),
        "among 0 KV heads",
        "",
    ),
    (
        ShardingStrategy.stacked_qkv(2, heads=-8, kv_heads=-2, head_dim=-2),
        (24, 5),
        ("query heads cannot be divided evenly among -2 KV heads"),
        "",
    ),
    (
        ShardingStrategy.head_aware_columnwise(2, heads=4, head_dim=3),
        (5, 13),
        ("the axis has 13 elements, but 4 heads of size 3 need 12"),
        "",
    ),
    (
        ShardingStrategy.head_aware_columnwise(2, heads=8, head_dim=2, kv_heads=3),
        (5, 16),
        "8 query heads cannot be divided evenly among 3 KV heads",
        "",
    ),
    (
        ShardingStrategy.head_aware_columnwise(2, heads=8, head_dim=2, kv_heads=0),
        (5, 16),
        "among 0 KV heads",
        "",
    ),
    (ShardingStrategy.gate_up(2), (5, 4), "its 5 rows cannot be divided into two halves", ""),
    (ShardingStrategy.gate_up(3), (4, 4), "a segment has only 2", "1 or 2 ranks work"),
    (
        ShardingStrategy.segmented(2, [3, 3]),
        (5, 4),
        r"the segments 3 \+ 3 do not add up to 5 elements",
        "",
    ),
    (ShardingStrategy.expert_parallel(4), (3, 2, 2), "along axis 0", "1 to 3 ranks work"),
]


@each("strategy, shape, says, hint", REFUSED, ids=str)
def test_what_cannot_be_cut_so_names_the_weight_and_the_counts_that_work(
    strategy: ShardingStrategy, shape: tuple[int, ...], says: str, hint: str
) -> None:
    with pytest.raises(ShardingError, match=says) as refusal:
        shards_of(strategy, *shape)
    assert refusal.value.message.startswith(f"`w` of shape {list(shape)} ")
    assert hint in refusal.value.hint
    assert isinstance(refusal.value, ValueError)


def test_sizes_that_are_not_known_cannot_be_cut() -> None:
    with pytest.raises(GraphError, match=r"`w` of shape \[n, 4\] cannot be split"):
        weight("n", 4, strategy=ShardingStrategy.rowwise(2)).shard(TWO)


REPRS = [
    (ShardingStrategy.rowwise(2), "rowwise(2)"),
    (ShardingStrategy.replicate(3), "replicate(3)"),
    (ShardingStrategy.axiswise(-1, 2), "axiswise(-1, 2)"),
    (ShardingStrategy.stacked_qkv(2, **QKV), "stacked_qkv(2, heads=4, kv_heads=2, head_dim=3)"),
    (ShardingStrategy.head_aware_columnwise(2, heads=4, head_dim=3, axis=0),
     "head_aware_columnwise(2, heads=4, head_dim=3, axis=0)"),
    (ShardingStrategy.gate_up(2), "gate_up(2)"),
    (ShardingStrategy.gate_up(2, axis=1), "gate_up(2, axis=1)"),
    (ShardingStrategy.segmented(2, [1, 2]), "segmented(2, (1, 2))"),
    (ShardingStrategy.expert_parallel(4), "expert_parallel(4)"),
]  # fmt: skip


@each("strategy, text", REPRS, ids=str)
def test_a_strategy_prints_as_the_call_that_makes_it(strategy: ShardingStrategy, text: str) -> None:
    assert repr(strategy) == f"ShardingStrategy.{text}"
    again: ShardingStrategy = eval(repr(strategy), {"ShardingStrategy": ShardingStrategy})
    assert again == strategy
    assert hash(again) == hash(strategy)


def test_strategies_with_other_settings_are_others() -> None:
    assert ShardingStrategy.rowwise(2) != ShardingStrategy.rowwise(3)
    assert ShardingStrategy.rowwise(2) != ShardingStrategy.columnwise(2)
    assert ShardingStrategy.axiswise(0, 2) != ShardingStrategy.axiswise(1, 2)


# Of one's own


@dataclass(frozen=True)
class Interleaved:
    """A user's own strategy: every other row."""

    devices: int = 2

    def shard(self, weight: Weight, number: int, device: DeviceRef) -> Weight:
        rows = weight.shape.sizes[0]
        ranges = tuple((row, row + 1) for row in range(number, rows, self.devices))
        return weight.part_for((Cut(0, ranges),), number, device)


def test_a_strategy_may_be_anybodys() -> None:
    first, second = weight(5, 3, strategy=Interleaved()).shard(TWO)
    assert (first.shape.sizes, second.shape.sizes) == ((3, 3), (2, 3))
    assert (first.shard_idx, second.shard_idx) == (0, 1)


def test_the_very_parts_may_be_given() -> None:
    parts = ((Cut(0, ((0, 1), (4, 5))),), (Cut(0, ((1, 4),)),), None)
    strategy = ShardingStrategy.given(Sharding("mine", parts))
    whole = weight(5, 3, strategy=strategy)
    assert strategy.shard(whole, 0, TWO[0]).shape.sizes == (2, 3)
    assert repr(strategy).startswith("ShardingStrategy.given(Sharding(strategy='mine', parts=")
    with pytest.raises(GraphError, match="`w` has no shard on device 2 of 3"):
        whole.shard(THREE)


@each(
    "cut",
    [Cut(0, ((0, 6),)), Cut(2, ((0, 1),)), Cut(-1, ((0, 1),)), Cut(1, ((2, 2),))],
    ids=["beyond", "axis", "negative axis", "empty"],
)
def test_given_parts_must_lie_in_the_weight(cut: Cut) -> None:
    strategy = ShardingStrategy.given(Sharding("mine", (((cut,)), ())))
    with pytest.raises(ShardingError, match=r"of `w` of shape \[5, 3\]"):
        weight(5, 3, strategy=strategy).shard(TWO)


@dataclass
class Halved:
    """What knows how its weights are cut, but for one."""

    up: Weight = field(default_factory=lambda: Weight("up", F32, (5, 4)))
    down: Weight = field(default_factory=lambda: Weight("down", F32, (4, 5)))
    other: Weight = field(default_factory=lambda: Weight("other", F32, (4,)))

    def tensor_parallel(self, devices: int) -> Mapping[Weight, Strategy]:
        return {
            self.up: ShardingStrategy.rowwise(devices),
            self.down: ShardingStrategy.columnwise(devices),
        }


def test_a_module_says_how_each_of_its_weights_is_cut() -> None:
    module = Halved()
    strategy = ShardingStrategy.tensor_parallel(module, 2)
    assert repr(strategy) == "ShardingStrategy.tensor_parallel(<Halved>, 2)"
    assert strategy.shard(module.up, 0, TWO[0]).shape.sizes == (3, 4)
    assert strategy.shard(module.down, 1, TWO[1]).shape.sizes == (4, 2)


def pickled(given: Any) -> Any:
    return pickle.loads(pickle.dumps(given))


COPIED: tuple[Callable[[Any], Any], ...] = (deepcopy, pickled)


@each("again", COPIED)
@each("strategy, shape, expected", CUTS, ids=str)
def test_copies_of_a_weight_are_cut_as_it_is(
    again: Callable[[Any], Any],
    strategy: ShardingStrategy,
    shape: tuple[int, ...],
    expected: list[tuple[int, ...]],
) -> None:
    copy: Weight = again(weight(*shape, strategy=strategy))
    devices = [DeviceRef.GPU(number) for number in range(strategy.devices)]
    assert [shard.shape.sizes for shard in copy.shard(devices)] == expected
    assert copy.sharding_strategy == strategy


@each("again", COPIED)
def test_copies_of_a_module_say_how_their_own_weights_are_cut(again: Callable[[Any], Any]) -> None:
    module = Halved()
    module.up.sharding_strategy = ShardingStrategy.tensor_parallel(module, 2)
    copy: Halved = again(module)
    first, _ = copy.up.shard(TWO)
    assert first.shape.sizes == (3, 4)
    assert first.shard_of is copy.up


def test_a_module_that_does_not_say_so_is_named_with_the_weight() -> None:
    module = Halved()
    strategy = ShardingStrategy.tensor_parallel(module, 2)
    with pytest.raises(GraphError, match="Halved has no rule for sharding its weight `other`"):
        strategy.sharding(module.other)
    with pytest.raises(GraphError, match="Graph has no rule for several devices"):
        ShardingStrategy.tensor_parallel(Graph("g"), 2)  # type: ignore[arg-type]


# In graphs


def test_shards_of_one_weight_are_values_of_one_graph_on_their_devices() -> None:
    whole = weight(5, 4, strategy=ShardingStrategy.rowwise(2))
    with Graph("both", [TensorType(F32, ("n", 4), device) for device in TWO]) as graph:
        parts = [x @ shard.T for x, shard in zip(graph.inputs, whole.shard(TWO), strict=True)]
        graph.output(*ops.allgather(parts))
    assert set(graph.weights_by_name) == {"w.shard.0", "w.shard.1"}
    assert [str(value.type) for value in graph.outputs] == [
        "float32[n, 5] on gpu:0", "float32[n, 5] on gpu:1",
    ]  # fmt: skip


def test_a_graph_keeps_what_a_shard_is_cut_from() -> None:
    whole = Weight("a.w", F32, (4, 2), sharding_strategy=ShardingStrategy.rowwise(2))
    _, second = whole.shard(TWO)
    with Graph("node", weight_prefix="a.") as graph:
        node = graph.weight_node(graph.add_weight(second))
    assert node is not None
    assert node.attributes["name"] == "w.shard.1"
    cut = node.attributes["cut_from"]
    assert (cut.name, cut.is_placeholder, cut.shape, cut.part) == ("w", True, [4, 2], second.part)
    assert cut.weight is whole


def test_a_shard_of_a_weight_that_has_another_shape_by_now_is_refused() -> None:
    whole = weight(4, 2, strategy=ShardingStrategy.rowwise(2))
    shard, _ = whole.shard(TWO)
    whole.shape = (6, 2)
    with (
        Graph("late") as graph,
        pytest.raises(
            GraphError, match=r"is a shard of `w`, whose shape changed from \[4, 2\] to \[6, 2\]"
        ),
    ):
        graph.add_weight(shard)


# How weights of blocks are cut for several devices: between blocks.


Q8_0 = QuantizationEncoding.Q8_0


@each(
    "encoding, columns, expected",
    [
        (QuantizationEncoding.Q8_0, 96, [64, 32]),
        (QuantizationEncoding.Q4_0, 96, [64, 32]),
        (QuantizationEncoding.Q4_K, 768, [512, 256]),
    ],
)
def test_the_columns_of_blocks_are_cut_between_blocks(
    encoding: QuantizationEncoding, columns: int, expected: list[int]
) -> None:
    shards = shards_of(ShardingStrategy.columnwise(2), 5, columns, quantization_encoding=encoding)
    kind = encoding.encoding
    assert [shard.original_dtype_and_shape for shard in shards] == [
        (F32, [5, size]) for size in expected
    ]
    assert [shard.shape.sizes for shard in shards] == [
        (5, size // kind.block * kind.size) for size in expected
    ]
    assert {(shard.dtype, shard.quantization_encoding) for shard in shards} == {
        (DType.uint8, encoding)
    }


@each(
    "encoding, columns, blocks, hint",
    [
        (QuantizationEncoding.Q8_0, 96, "3 blocks of 32", "1 to 3 ranks work"),
        (QuantizationEncoding.Q4_0, 32, "1 block of 32 elements", "1 rank works"),
        (QuantizationEncoding.Q4_K, 512, "2 blocks of 256", "1 or 2 ranks work"),
    ],
)
def test_no_block_is_broken(
    encoding: QuantizationEncoding, columns: int, blocks: str, hint: str
) -> None:
    with pytest.raises(ShardingError, match=blocks) as refusal:
        shards_of(ShardingStrategy.columnwise(4), 5, columns, quantization_encoding=encoding)
    assert refusal.value.hint == hint


def test_heads_that_are_shorter_than_a_block_stay_together() -> None:
    strategy = ShardingStrategy.head_aware_columnwise(2, heads=6, head_dim=16)
    shards = shards_of(strategy, 4, 96, quantization_encoding=Q8_0)
    assert [shard.original_dtype_and_shape[1] for shard in shards] == [[4, 64], [4, 32]]


def test_the_rows_of_blocks_are_cut_as_any() -> None:
    shards = shards_of(ShardingStrategy.rowwise(2), 3, 256, quantization_encoding=Q8_0)
    assert [shard.shape.sizes for shard in shards] == [(2, 272), (1, 272)]


def test_a_weight_that_is_declared_by_its_bytes_is_cut_by_its_numbers() -> None:
    whole = Weight(
        "w", DType.uint8, (4, 68), quantization_encoding=Q8_0,
        sharding_strategy=ShardingStrategy.columnwise(2),
    )  # fmt: skip
    assert [shard.shape.sizes for shard in whole.shard(TWO)] == [(4, 34)] * 2


def test_given_parts_must_be_of_whole_blocks() -> None:
    parts = ((Cut(1, ((0, 40),)),), (Cut(1, ((40, 64),)),))
    strategy = ShardingStrategy.given(Sharding("mine", parts))
    whole = weight(5, 64, strategy=strategy, quantization_encoding=Q8_0)
    with pytest.raises(
        ShardingError, match=r"would split blocks of 32 elements along axis 1 of `w`"
    ):
        whole.shard(TWO)
    assert weight(5, 64, strategy=strategy).shard(TWO)[0].shape.sizes == (5, 40)


def test_a_part_that_breaks_blocks_is_not_a_weight() -> None:
    with pytest.raises(EncodingError, match="is not a whole number of Q8_0 blocks"):
        weight(4, 64, quantization_encoding=Q8_0).part_for((Cut(1, ((0, 40),)),), 0, TWO[0])
