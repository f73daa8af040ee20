"""How layers have their weights cut, and what they say where that cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from each import each
from weightctl import DType, QuantizationEncoding
from weightctl.errors import GraphError, ShardingError
from weightctl.graph import ShardingStrategy, Weight
from weightctl.nn import MLP, Attention, Embedding, GatedMLP, Linear, MixtureOfExperts
from weightctl.split import Cut, Sharding

if TYPE_CHECKING:
    from weightctl.nn import Divisible

Ranges = tuple[tuple[int, int], ...]


def cuts(layer: Divisible, ranks: int) -> dict[str, list[tuple[int, Ranges] | None]]:
    """Return of each weight the axis and ranges that each rank has; None for all of it."""
    layer.name_weights()
    return {
        weight.name: [
            (part[0].axis, part[0].ranges) if part else None
            for part in strategy.sharding(weight).parts
        ]
        for weight, strategy in layer.tensor_parallel(ranks).items()
    }


def rows(*ranges: tuple[int, int]) -> list[Any]:
    return [(0, (each,)) for each in ranges]


def columns(*ranges: tuple[int, int]) -> list[Any]:
    return [(1, (each,)) for each in ranges]


def refusal(layer: Divisible, ranks: int) -> str:
    layer.name_weights()
    with pytest.raises(ShardingError) as raised:
        layer.tensor_parallel(ranks)
    return f"{raised.value.headline}; {raised.value.hint}"


def test_attention_gives_key_value_heads_to_ranks_with_all_their_queries() -> None:
    attention = Attention(6, 6, kv_heads=3, head_dim=2, bias=True, norm_epsilon=1e-6)
    whole = [None, None]
    assert cuts(attention, 2) == {
        "q.weight": rows((0, 8), (8, 12)),
        "q.bias": rows((0, 8), (8, 12)),
        "k.weight": rows((0, 4), (4, 6)),
        "k.bias": rows((0, 4), (4, 6)),
        "v.weight": rows((0, 4), (4, 6)),
        "v.bias": rows((0, 4), (4, 6)),
        "o.weight": columns((0, 8), (8, 12)),
        "o.bias": whole,
        "q_norm.weight": whole,
        "k_norm.weight": whole,
    }


def test_more_ranks_than_key_value_heads_share_these_and_divide_their_queries() -> None:
    found = cuts(Attention(8, 4, kv_heads=2), 4)
    assert found["q.weight"] == rows((0, 2), (2, 4), (4, 6), (6, 8))
    assert found["k.weight"] == found["v.weight"] == rows((0, 2), (0, 2), (2, 4), (2, 4))


@each("transposed", [False, True])
def test_a_fused_projection_is_cut_by_heads_within_queries_keys_and_values(
    transposed: bool,
) -> None:
    attention = Attention(8, 4, kv_heads=2, fused=True, bias=True, transposed=transposed)
    found = cuts(attention, 2)
    stacked = [((0, 4), (8, 10), (12, 14)), ((4, 8), (10, 12), (14, 16))]
    outputs, inputs = (1, 0) if transposed else (0, 1)
    assert found["qkv.weight"] == [(outputs, each) for each in stacked]
    assert found["qkv.bias"] == [(0, each) for each in stacked]
    assert found["o.weight"] == [(inputs, ((0, 4),)), (inputs, ((4, 8),))]


def test_heads_of_quantized_weights_stay_together_in_whole_blocks() -> None:
    q8_0 = QuantizationEncoding.Q8_0
    attention = Attention(96, 6, head_dim=16, quantization_encoding=q8_0)
    assert cuts(attention, 2)["o.weight"] == columns((0, 64), (64, 96))
    assert refusal(attention, 4) == (
        "`o.weight` of shape [96, 96] cannot be split across 4 ranks: the model has 6 query heads "
        "(head size 16), which "
        "are split in blocks of 32 elements; 1 to 3 ranks work"
    )


def test_heads_that_cannot_be_shared_out_are_refused_with_the_numbers_that_can() -> None:
    assert refusal(Attention(32, 16, kv_heads=4), 6) == (
        "`q.weight` of shape [32, 32] cannot be split across 6 ranks: the model has 16 query heads "
        "and 4 KV heads (head size 2); 1 to 4, 8, 12 or 16 ranks work"
    )


def test_an_mlp_is_cut_along_its_wider_space() -> None:
    assert cuts(MLP(4, 5, "gelu"), 2) == {
        "up.weight": rows((0, 3), (3, 5)),
        "up.bias": rows((0, 3), (3, 5)),
        "down.weight": columns((0, 3), (3, 5)),
        "down.bias": [None, None],
    }


def test_a_fused_mlp_is_cut_within_gate_and_up() -> None:
    found = cuts(GatedMLP(4, 5, "silu", fused=True), 2)
    assert found["gate_up.weight"] == [(0, ((0, 3), (5, 8))), (0, ((3, 5), (8, 10)))]
    assert found["down.weight"] == columns((0, 3), (3, 5))


def test_a_quantized_mlp_is_cut_in_the_blocks_of_what_leads_back() -> None:
    mlp = GatedMLP(256, 768, "silu", quantization_encoding=QuantizationEncoding.Q4_K)
    found = cuts(mlp, 2)
    assert found["gate.weight"] == found["up.weight"] == rows((0, 512), (512, 768))
    assert found["down.weight"] == columns((0, 512), (512, 768))
    assert refusal(mlp, 4) == (
        "`down.weight` of shape [256, 768] cannot be split across 4 ranks: axis 1 has only 3 "
        "blocks of 256 elements; 1 to 3 ranks work"
    )


def test_a_mixture_is_cut_within_each_expert_and_chooses_among_all() -> None:
    found = cuts(MixtureOfExperts(4, 6, "silu", count=2, used=1), 2)
    assert found["router.weight"] == [None, None]
    for number in range(2):
        assert found[f"experts.{number}.up.weight"] == rows((0, 3), (3, 6))
        assert found[f"experts.{number}.down.weight"] == columns((0, 3), (3, 6))


def test_groups_have_whole_experts_in_their_order() -> None:
    mixture = MixtureOfExperts(4, 6, "silu", count=5, used=1)
    groups = mixture.groups(3)
    assert [(each.first, len(each.experts)) for each in groups] == [(0, 2), (2, 2), (4, 1)]
    assert groups[1].experts[0] is mixture.experts[2]
    assert (mixture.first, len(mixture.experts)) == (0, 5)


def test_fewer_experts_than_groups_are_refused() -> None:
    mixture = MixtureOfExperts(4, 6, "silu", count=2, used=1)
    mixture.name_weights()
    with pytest.raises(ShardingError) as raised:
        mixture.groups(3)
    assert raised.value.headline == (
        "the 2 experts of `router.weight` cannot be divided among 3 groups of ranks"
    )
    assert raised.value.hint == "1 or 2 groups work"


def test_a_table_is_cut_by_rows_of_which_the_first_ranks_have_more() -> None:
    assert cuts(Embedding(5, 4), 3) == {"weight": rows((0, 2), (2, 4), (4, 5))}
    assert refusal(Embedding(2, 4), 3) == (
        "`weight` of shape [2, 4] cannot be split across 3 ranks: axis 0 has only 2 elements; "
        "1 or 2 ranks work"
    )


def test_a_replicated_table_is_on_every_rank() -> None:
    assert cuts(Embedding(2, 4, replicated=True), 3) == {"weight": [None] * 3}


def test_a_linear_layer_says_how_many_outputs_each_rank_has() -> None:
    linear = Linear(4, 5, bias=True)
    assert cuts(linear, 2) == {"weight": rows((0, 3), (3, 5)), "bias": rows((0, 3), (3, 5))}
    assert linear.widths(2) == [3, 2]


def test_a_shard_of_a_table_must_have_rows_that_follow_one_another() -> None:
    table = Embedding(4, 2)
    parts = ((Cut(0, ((0, 1), (3, 4))),), (Cut(0, ((1, 3),)),))
    strategy = ShardingStrategy.given(Sharding("odd and even", parts))
    shards = [strategy.shard(table.weight, number, table.weight.device) for number in range(2)]
    table.weight = shards[1]
    table.take_shards()
    assert table.rows == (1, 3, 4)
    table.weight = shards[0]
    with pytest.raises(
        GraphError,
        match="shard 0 has rows of `weight` that are not consecutive, so token ids cannot be "
        "mapped to them",
    ):
        table.take_shards()


def test_only_the_shard_with_the_first_inputs_keeps_the_bias() -> None:
    weight = Weight("weight", DType.float32, (2, 4))
    for number, has_bias in enumerate([True, False]):
        linear = Linear(4, 2, bias=True)
        linear.weight = ShardingStrategy.columnwise(2).shard(weight, number, weight.device)
        linear.take_shards()
        assert (linear.bias is not None) is has_bias


def test_shards_with_some_of_the_outputs_keep_their_bias() -> None:
    weight = Weight("weight", DType.float32, (2, 4))
    linear = Linear(4, 2, bias=True)
    linear.weight = ShardingStrategy.rowwise(2).shard(weight, 1, weight.device)
    linear.take_shards()
    assert linear.bias is not None
