"""The display of what each rank gets, for plans that are created by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import small_checkpoints
from weightctl import open_weights
from weightctl.cli.render import in_columns
from weightctl.cli.shares import document, share_rows, summary
from weightctl.cli.splits import grid_text, join_ranks
from weightctl.sharding.plan import ShardPlan, ranks_of
from weightctl.split import Grid, Sharding, Whole, columnwise, replicate, rowwise
from weightctl.write.describe import describe_shards

if TYPE_CHECKING:
    from pathlib import Path


def planned(path: Path, grid: Grid) -> ShardPlan:
    """Cut what is called `proj`, `embed` or `w1` to `w3`; of 8 experts each group has its share.

    Of two layers either is on one stage, what is beside them on the first.
    """
    source = open_weights(path).source
    shardings: dict[str, Sharding] = {}
    for name, info in source.header.tensors.items():
        whole = Whole(name, info.shape, (1,) * len(info.shape))
        way = columnwise if ".w2." in name else rowwise
        is_cut = any(word in name for word in ("proj", "embed", ".w1.", ".w2.", ".w3."))
        strategy, parts = (way if is_cut else replicate)(whole, grid.tp)
        segments = name.split(".")
        stage = int(segments[2]) * grid.pp // 2 if "layers" in segments else 0
        group = int(segments[5]) * grid.ep // 8 if "experts" in segments else None
        places = map(grid.place, range(grid.ranks))
        on_ranks = (
            parts[rank] if group in {None, at} and on == stage else None for rank, at, on in places
        )
        shardings[name] = Sharding(strategy, tuple(on_ranks))
    ranks = ranks_of(source, shardings, grid)
    return ShardPlan(source, "safetensors", "ranks", grid, shardings, ranks)


def shown(plan: ShardPlan, room: int | None = None) -> list[str]:
    rows = in_columns(share_rows(plan), room)
    return ["".join(cell.text for cell in row).rstrip() for row in rows]


def summarize(plan: ShardPlan, out: Path) -> list[str]:
    lines = summary("in", "out", plan, describe_shards(plan, out), None)
    return ["".join(cell.text for cell in line) for line in lines]


@pytest.mark.parametrize(
    ("grid", "text"),
    [
        (Grid(), "1 rank"),
        (Grid(2), "2 ranks: tp 2"),
        (Grid(1, 4), "4 ranks: ep 4"),
        (Grid(2, 2, 3), "12 ranks: tp 2 x ep 2 x pp 3"),
    ],
)
def test_a_grid_is_told_by_the_axes_that_it_has(grid: Grid, text: str) -> None:
    assert grid_text(grid) == text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([0], "0"), ([0, 1], "0-1"), ([0, 2, 3, 4, 7], "0, 2-4, 7"), ([5, 6, 8], "5-6, 8")],
)
def test_runs_of_ranks_are_named_by_their_ends(ranks: list[int], text: str) -> None:
    assert join_ranks(ranks) == text


def test_a_tensor_has_a_shape_for_all_ranks_or_one_for_some(tmp_path: Path) -> None:
    lines = shown(planned(small_checkpoints.small(tmp_path), Grid(3)))
    assert lines[1].endswith("32x16  BF16  1.02 kB  rowwise    11x16 on 0-1; 10x16 on 2")
    assert lines[5].endswith("16x16  BF16    512 B  rowwise    6x16 on 0; 5x16 on 1-2")
    even = shown(planned(small_checkpoints.small(tmp_path, "even"), Grid(2)))
    assert even[1].endswith("32x16  BF16  1.02 kB  rowwise    16x16")


def test_of_what_is_replicated_no_shape_is_reported_twice(tmp_path: Path) -> None:
    lines = shown(planned(small_checkpoints.small(tmp_path), Grid(2)))
    assert lines[-1].endswith("16  BF16     32 B  replicate")


def test_layers_that_are_cut_alike_are_shown_once(tmp_path: Path) -> None:
    lines = shown(planned(small_checkpoints.small(tmp_path), Grid(2)))
    assert [line.strip().split("  ")[0] for line in lines if "layers" in line] == ["layers.[0-1]"]


def test_layers_of_several_stages_are_shown_for_each(tmp_path: Path) -> None:
    lines = shown(planned(small_checkpoints.small(tmp_path), Grid(2, 1, 2)))
    queries = [line for line in lines if "q_proj" in line]
    assert queries[0].endswith("rowwise    8x16 on 0-1")
    assert queries[1].endswith("rowwise    8x16 on 2-3")


def test_experts_are_shown_by_the_group_that_has_them(tmp_path: Path) -> None:
    lines = shown(planned(small_checkpoints.mixture(tmp_path), Grid(2, 2)))
    groups = [line.split()[0] for line in lines if line.lstrip().startswith(("[", "5"))]
    assert groups == ["[0-3]", "[4-7]", "[0-3]", "[4,6-7]", "5"]
    down = [line for line in lines if "w2.weight" in line]
    assert down[0].endswith("16x32  BF16  1.02 kB  columnwise  16x16 on 0-1")
    assert down[-1].endswith("16x64  BF16  2.05 kB  columnwise  16x32 on 2-3")


def test_a_narrow_terminal_gets_the_shapes_without_the_ranks(tmp_path: Path) -> None:
    lines = shown(planned(small_checkpoints.small(tmp_path), Grid(3)), 80)
    assert lines[1].endswith("rowwise    11x16 / 10x16")
    assert max(map(len, lines)) <= 80


def test_the_summary_tells_what_copies_take(tmp_path: Path) -> None:
    plan = planned(small_checkpoints.small(tmp_path), Grid(3))
    lines = summarize(plan, tmp_path / "out")
    assert lines[0] == "in -> out (safetensors, 3 ranks: tp 3)"
    # Three vectors of 32 bytes and two of as many, twice more than once.
    assert lines[1] == "8 tensors, 2.21 kB: 3 split, 5 replicated; copies add 320 B"
    sizes = [layout.nbytes for layout in describe_shards(plan, tmp_path / "out").parts.values()]
    assert lines[3:6] == [
        f"  rank-{rank}/model.safetensors: 8 tensors, {size / 1000:.2f} kB"
        for rank, size in enumerate(sizes)
    ]
    assert lines[6:] == ["other files in each directory: config.json", "nothing was written"]


def test_what_is_whole_on_one_rank_is_not_a_copy(tmp_path: Path) -> None:
    plan = planned(small_checkpoints.small(tmp_path), Grid(1, 1, 2))
    assert summarize(plan, tmp_path / "out")[1] == "8 tensors, 2.21 kB: 8 on one rank"
    assert shown(plan)[-1].endswith("16  BF16     32 B  whole    16 on 0")


def test_a_narrow_terminal_gets_what_there_is_room_for_and_no_types(tmp_path: Path) -> None:
    plan = planned(small_checkpoints.small(tmp_path), Grid(2))
    name = "model.layers.0.self_attn.q_proj.weight"
    sharding = plan.shardings[name]._replace(strategy="expert_parallel, head_aware_columnwise")
    plan = replace(plan, shardings={name: sharding})
    assert "BF16  512 B  expert_parallel, head_aware_columnwise  8x16" in shown(plan)[-1]
    assert shown(plan, 80)[-1].endswith("16x16  512 B  head_aware  8x16")


def test_ranks_whose_files_are_alike_share_a_line(tmp_path: Path) -> None:
    lines = summarize(planned(small_checkpoints.mixture(tmp_path), Grid(2, 2)), tmp_path / "out")
    assert [line.split(",")[0] for line in lines[3:5]] == [
        "  rank-[0-1]/model.safetensors: 27 tensors",
        "  rank-[2-3]/model.safetensors: 27 tensors",
    ]
    assert lines[3].endswith(" each")


def test_what_scripts_get_adds_up(tmp_path: Path) -> None:
    plan = planned(small_checkpoints.mixture(tmp_path), Grid(2, 2))
    outcome = describe_shards(plan, tmp_path / "out")
    content = document("in", "out", plan, outcome, None)
    sizes = content["tensor_bytes"]
    assert sizes["whole"] + sizes["replicated"] == sizes["ranks"]
    assert sizes["padding"] == 0
    assert content["bytes"] == sum(file["bytes"] for file in content["files"])
    assert content["carried"] == [f"rank-{rank}/config.json" for rank in range(4)]
    (last,) = (
        each
        for each in content["tensors"]
        if each["name"].endswith("1.block_sparse_moe.experts.5.w1.weight")
    )
    assert last["ranks"] == [None, None, [32, 16], [32, 16]]
