"""How weights of blocks are cut for several devices: between blocks."""

from __future__ import annotations

import pytest
from sharded_weights import F32, TWO, shards_of, weight

from each import each
from weightctl.dtype import DType, QuantizationEncoding
from weightctl.errors import EncodingError, ShardingError
from weightctl.graph import ShardingStrategy, Weight
from weightctl.split import Cut, Sharding

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
