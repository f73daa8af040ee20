"""The slices of ranks: every element is assigned, no unit is split, and sizes are even."""

from __future__ import annotations

import pickle
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weightctl.errors import ShardingError, TensorSplitError
from weightctl.split import (
    Cut,
    Grid,
    Sharding,
    Whole,
    axiswise,
    columnwise,
    counts_that_work,
    expert_parallel,
    gate_up,
    head_aware_columnwise,
    head_ranges,
    join_counts,
    replicate,
    rowwise,
    segmented,
    shares,
    stacked_qkv,
    unit_ranges,
)

if TYPE_CHECKING:
    from collections.abc import Callable


# The start of every error for splitting `matrix(2, 8)` by rows.
SPLIT = "`w` of shape [2, 8] cannot be split along axis 0"


def matrix(rows: int, columns: int, block: int = 1) -> Whole:
    return Whole("w", (rows, columns), (1, block))


def rows_of(sharding: Sharding, size: int, axis: int = 0) -> list[list[int]]:
    """The entries of an axis that each rank has."""
    found: list[list[int]] = []
    for part in sharding.parts:
        assert part is not None
        ranges = part[0].ranges if part else ((0, size),)
        assert not part or part[0].axis == axis
        found.append([entry for start, stop in ranges for entry in range(start, stop)])
    return found


@given(st.integers(0, 100), st.integers(1, 12))
def test_the_first_get_one_more(count: int, ranks: int) -> None:
    sizes = [stop - start for start, stop in shares(count, ranks)]
    assert sizes == [count // ranks + (rank < count % ranks) for rank in range(ranks)]


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 9))
def test_units_stay_whole_and_no_rank_is_empty(size: int, unit: int, ranks: int) -> None:
    ranges = unit_ranges(size, unit, ranks)
    units = -(-size // unit)
    assert (ranges is None) == (units < ranks)
    if ranges is not None:
        assert ranges[0][0] == 0
        assert ranges[-1][1] == size
        assert all(a[1] == b[0] for a, b in pairwise(ranges))
        assert all(start % unit == 0 and start < stop for start, stop in ranges)


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 12), st.integers(1, 4))
def test_heads_keep_to_their_keys(kv_heads: int, group: int, ranks: int, step: int) -> None:
    heads = kv_heads * group
    shared = head_ranges(heads, kv_heads, ranks, step=step)
    assume(shared is not None)
    assert shared is not None
    queries = [head for (start, stop), _ in shared for head in range(start, stop)]
    assert queries == list(range(heads))
    for (start, stop), (first, last) in shared:
        assert start < stop
        assert start % step == 0
        own = {head // group for head in range(start, stop)}
        assert own == set(range(first, last))
        # Attention divides the KV heads evenly among the query heads of a rank.
        assert (stop - start) % (last - first) == 0


def test_nine_heads_for_three_of_keys_go_to_six_ranks_and_not_to_four() -> None:
    works = counts_that_work(lambda count: head_ranges(9, 3, count), 12)
    assert works == [1, 2, 3, 6, 9]
    assert head_ranges(9, 3, 2) == [((0, 6), (0, 2)), ((6, 9), (2, 3))]
    assert head_ranges(4, 2, 4) == [
        ((0, 1), (0, 1)), ((1, 2), (0, 1)), ((2, 3), (1, 2)), ((3, 4), (1, 2)),
    ]  # fmt: skip


@given(st.integers(1, 30), st.sampled_from([1, 2, 3, 4, 8]))
def test_rows_and_columns_are_each_on_one_rank(size: int, ranks: int) -> None:
    assume(ranks <= size)
    everything = list(range(size))
    assert [*chain(*rows_of(rowwise(matrix(size, 2), ranks), size))] == everything
    assert [*chain(*rows_of(columnwise(matrix(2, size), ranks), size, 1))] == everything


@given(st.integers(1, 12), st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([32, 256]))
def test_columns_are_cut_between_blocks(blocks: int, ranks: int, block: int) -> None:
    whole = matrix(4, blocks * block, block)
    if blocks < ranks:
        with pytest.raises(ShardingError, match=f"`w` .* axis 1 across {ranks} ranks") as caught:
            columnwise(whole, ranks)
        assert str(blocks) in caught.value.hint
        columnwise(whole, blocks)
        return
    sharding = columnwise(whole, ranks)
    for part in sharding.parts:
        assert part is not None
        assert all(end % block == 0 for cut in part for range_ in cut.ranges for end in range_)


def test_each_rank_has_its_share_of_every_segment() -> None:
    sharding = segmented(matrix(9, 2), 2, (6, 3))
    assert rows_of(sharding, 9) == [[0, 1, 2, 6, 7], [3, 4, 5, 8]]
    assert rows_of(gate_up(matrix(6, 2), 2), 6) == [[0, 1, 3, 4], [2, 5]]


def test_queries_keys_and_values_are_each_cut_by_heads() -> None:
    sharding = stacked_qkv(matrix(16, 4), 2, heads=4, kv_heads=2, head_dim=2)
    assert rows_of(sharding, 16) == [[0, 1, 2, 3, 8, 9, 12, 13], [4, 5, 6, 7, 10, 11, 14, 15]]


def test_keys_are_replicated_where_there_are_fewer_than_ranks() -> None:
    sharding = stacked_qkv(matrix(8, 4), 2, heads=2, kv_heads=1, head_dim=2)
    assert rows_of(sharding, 8) == [[0, 1, 4, 5, 6, 7], [2, 3, 4, 5, 6, 7]]


def test_what_comes_out_of_attention_is_cut_as_its_queries_are() -> None:
    sharding = head_aware_columnwise(matrix(2, 18), 2, heads=9, kv_heads=3, head_dim=2)
    assert rows_of(sharding, 18, 1) == [list(range(12)), list(range(12, 18))]
    alone = head_aware_columnwise(matrix(2, 18), 2, heads=9, head_dim=2)
    assert rows_of(alone, 18, 1) == [list(range(10)), list(range(10, 18))]


def test_blocks_longer_than_a_head_keep_heads_together() -> None:
    whole = matrix(2, 8 * 16, 32)
    sharding = head_aware_columnwise(whole, 3, heads=8, head_dim=16)
    assert rows_of(sharding, 128, 1) == [list(range(64)), list(range(64, 96)), list(range(96, 128))]


def test_experts_are_cut_along_the_first_axis() -> None:
    sharding = expert_parallel(Whole("w", (3, 4, 4), (1, 1, 1)), 2)
    assert sharding == Sharding("expert_parallel", ((Cut(0, ((0, 2),)),), (Cut(0, ((2, 3),)),)))


def test_what_is_whole_has_no_cuts() -> None:
    assert replicate(matrix(3, 3), 4).parts == ((), (), (), ())
    assert rowwise(matrix(3, 3), 1).parts == ((),)
    assert axiswise(Whole("w", (2, 3, 4), (1, 1, 1)), 2, 2).shape((2, 3, 4), 1) == (2, 3, 2)


@pytest.mark.parametrize(
    ("cut", "reported", "works"),
    [
        (
            lambda: rowwise(matrix(2, 8), 3),
            r"`w` of shape \[2, 8\] cannot be split along axis 0 across 3 ranks",
            "1 or 2",
        ),
        (lambda: columnwise(Whole("w", (8,), (1,)), 2), "no axis 1", "replicate"),
        (lambda: columnwise(matrix(2, 512, 256), 3), "2 blocks of 256", "1 or 2 ranks"),
        (lambda: gate_up(matrix(3, 2), 2), "rows cannot be divided into two halves", ""),
        (
            lambda: segmented(matrix(9, 2), 2, (6, 4)),
            r"the segments 6 \+ 4 do not add up to 9",
            "",
        ),
        (
            lambda: segmented(matrix(9, 2), 4, (6, 3)),
            "a segment has only 3 elements",
            "1 to 3 ranks work",
        ),
        (lambda: stacked_qkv(matrix(9, 2), 2, heads=4, kv_heads=2, head_dim=2), "9 rows", ""),
        (
            lambda: stacked_qkv(matrix(30, 2), 4, heads=9, kv_heads=3, head_dim=2),
            r"the model has 9 query heads and 3 KV heads \(head size 2\)",
            "1 to 3, 6 or 9 ranks work",
        ),
        (
            lambda: head_aware_columnwise(matrix(2, 9), 2, heads=4, head_dim=2),
            ("the axis has 9 elements, but 4 heads of size 2 need 8"),
            "",
        ),
        (lambda: rowwise(matrix(2, 2), 0), "0 is not a valid number of ranks", "1"),
    ],
)
def test_what_cannot_be_is_reported_with_what_can(
    cut: Callable[[], Sharding], reported: str, works: str
) -> None:
    with pytest.raises(ShardingError, match=reported) as caught:
        cut()
    assert works in caught.value.hint


@pytest.fixture
def refusal() -> TensorSplitError:
    """Why two rows cannot be split across three ranks."""
    with pytest.raises(TensorSplitError) as caught:
        rowwise(matrix(2, 8), 3)
    return caught.value


def test_a_refusal_has_its_parts(refusal: TensorSplitError) -> None:
    parts = refusal.name, refusal.shape, refusal.axis, refusal.ranks
    assert parts == ("w", (2, 8), 0, 3)
    assert refusal.message == f"{SPLIT} across 3 ranks: {refusal.reason}"


def test_the_summary_of_a_refusal_has_no_number_of_ranks(refusal: TensorSplitError) -> None:
    assert refusal.summary == f"{SPLIT}: {refusal.reason}"


def test_a_refusal_can_be_pickled(refusal: TensorSplitError) -> None:
    placed = refusal.at("rules.toml: `w`")
    again = pickle.loads(pickle.dumps(placed))
    assert str(again) == str(placed)
    assert again.message.startswith(f"rules.toml: `w`: {SPLIT}")


def test_numbers_of_ranks_are_told_in_runs() -> None:
    assert join_counts([1]) == "1"
    assert join_counts([1, 2]) == "1 or 2"
    assert join_counts([1, 2, 3, 4, 6, 8, 9]) == "1 to 4, 6, 8 or 9"


def test_ranks_count_tensors_first_and_layers_last() -> None:
    grid = Grid(tp=2, ep=3, pp=2)
    assert grid.ranks == 12
    assert [grid.place(rank) for rank in (0, 1, 2, 6, 11)] == [
        (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 2, 1),
    ]  # fmt: skip
