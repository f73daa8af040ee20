"""A sharded checkpoint is listed as one, with how each tensor is split."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

import small_checkpoints
from commands import TINY
from commands import run_command as weightctl
from sharded_files import bytes_for, document_of, plan_of, write_document, write_shards, write_whole
from terminal import on_a_terminal, without_color
from weightctl import open_weights
from weightctl.cli.render import join_ranks, rank_shapes, shorten_strategy
from weightctl.cli.shard import document, share_rows, summary
from weightctl.dtype import ENCODINGS
from weightctl.sharding.plan import ShardPlan, ranks_of
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid, Sharding, Whole, axiswise, columnwise, replicate, rowwise
from weightctl.text.columns import in_columns
from weightctl.text.documents import to_document
from weightctl.weights.info import TensorInfo
from weightctl.write.outcome import describe_shards

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cut") / "halves"
    return write_shards(shard_plan(open_weights(TINY), Grid(2)), out)


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cut") / "stages"
    return write_shards(shard_plan(open_weights(TINY), Grid(2, 1, 2)), out)


def lines_with(shown: str, *words: str) -> list[str]:
    """Return the lines that begin with one of these words, with one space between words."""
    lines = (" ".join(line.split()) for line in shown.splitlines())
    return [line for line in lines if line.startswith(words)]


def test_a_tree_says_how_tensors_are_cut_and_what_ranks_have(halves: Path) -> None:
    shown = weightctl("ls", halves).stdout
    assert shown.splitlines()[0] == f"{halves}: safetensors, 2 ranks: tp 2"
    assert shown.splitlines()[1].startswith("30 tensors, 1.94 M parameters, 3.87 MB, ")
    assert lines_with(shown, "lm_head", "down_proj", "o_proj", "norm") == [
        "lm_head.weight 512x256 BF16 262 kB rowwise 2x 256x256",
        "down_proj.weight 256x512 BF16 262 kB columnwise 2x 256x256",
        "o_proj.weight 256x256 BF16 131 kB head_aware_columnwise 2x 256x128",
        "norm.weight 256 BF16 512 B replicate",
    ]
    assert "  layers.[0-2]  x3  " in shown


def test_of_stages_it_says_who_has_a_layer_and_folds_those_that_are_alike(stages: Path) -> None:
    shown = weightctl("ls", stages).stdout
    assert shown.splitlines()[0].endswith("4 ranks: tp 2 x pp 2")
    assert lines_with(shown, "q_proj", "[0-1]") == [
        "[0-1] x2 2 x 9 tensors 2.23 MB",
        "q_proj.weight 256x256 BF16 131 kB rowwise 2x 128x256 on 0-1",
        "q_proj.weight 256x256 BF16 131 kB rowwise 2x 128x256 on 2-3",
    ]


def test_what_one_rank_alone_has_is_whole_there(tmp_path: Path) -> None:
    out = write_shards(shard_plan(open_weights(TINY), Grid(1, 1, 2)), tmp_path / "out")
    shown = weightctl("ls", out).stdout
    assert lines_with(shown, "norm") == ["norm.weight 256 BF16 512 B whole 256 on 1"]
    listed = json.loads(weightctl("ls", out, "--json").stdout)
    (norm,) = [each for each in listed["tensors"] if each["name"] == "model.norm.weight"]
    assert norm["sharding"] == {"strategy": "whole", "ranks": [None, [256]]}


def test_a_narrow_terminal_has_no_room_for_the_shapes_of_ranks(halves: Path) -> None:
    shown = without_color(on_a_terminal(80, "ls", "halves", cwd=halves.parent))
    assert max(map(len, shown.splitlines())) <= 80
    assert lines_with(shown, "o_proj") == ["o_proj.weight 256x256 BF16 131 kB head_aware 2x"]
    wide = without_color(on_a_terminal(120, "ls", "halves", cwd=halves.parent))
    assert lines_with(wide, "o_proj")[0].endswith("head_aware_columnwise 2x 256x128")


def test_a_flat_list_has_the_same_columns(stages: Path) -> None:
    shown = weightctl("ls", stages, "--flat", "--include", "lm_head*").stdout
    assert " ".join(shown.split()) == "lm_head.weight 512x256 BF16 262 kB rowwise 2x 256x256 on 2-3"


def test_a_long_list_tells_the_files_of_ranks_apart(stages: Path) -> None:
    shown = weightctl("ls", stages, "-l").stdout.splitlines()
    assert shown[0].split()[-4:] == ["file", "split", "per", "rank"]
    head = next(line for line in shown if line.startswith("lm_head"))
    assert "  rank-2/model.safetensors  " in head


def test_digests_are_those_of_the_whole_tensors(halves: Path) -> None:
    def digests(path: Path) -> dict[str, str]:
        listed = json.loads(weightctl("ls", path, "--json", "--hash").stdout)
        return {each["name"]: each["sha256"] for each in listed["tensors"]}

    assert digests(halves) == digests(TINY)


def test_json_says_the_same_and_is_as_its_schema_says(stages: Path) -> None:
    schema: Any = json.loads(files("weightctl").joinpath("schemas/ls.json").read_text())
    listed = json.loads(weightctl("ls", stages, "--json").stdout)
    Draft202012Validator(schema).validate(listed)
    assert listed["grid"] == {"tp": 2, "ep": 1, "pp": 2}
    assert len(listed["files"]) == 4
    (head,) = [each for each in listed["tensors"] if each["name"] == "lm_head.weight"]
    ranks = [None, None, [256, 256], [256, 256]]
    assert head["sharding"] == {"strategy": "rowwise", "ranks": ranks}
    assert head["file"] == listed["files"][2]


def test_of_a_checkpoint_that_is_not_cut_json_says_nothing_of_it() -> None:
    listed = json.loads(weightctl("ls", TINY, "--json").stdout)
    assert listed["grid"] is None
    assert {each["sharding"] for each in listed["tensors"]} == {None}


def test_the_directory_of_a_rank_is_that_ranks_alone(halves: Path) -> None:
    shown = weightctl("ls", halves / "rank-1").stdout
    assert shown.splitlines()[0] == f"{halves / 'rank-1'}: safetensors"
    assert lines_with(shown, "lm_head") == ["lm_head.weight 256x256 BF16 131 kB"]


def test_of_one_ranks_part_it_is_reported_where_the_whole_is(halves: Path) -> None:
    for path in (halves / "rank-1", halves / "rank-1" / "model.safetensors"):
        note = weightctl("ls", path).stderr
        assert (
            note == "note: this file has only the tensors of one rank; "
            f"open {halves} for the whole checkpoint\n"
        )
    assert weightctl("ls", halves).stderr == ""


def test_the_manifest_may_be_named_too(halves: Path) -> None:
    by_name = weightctl("ls", halves / "manifest.json").stdout.splitlines()[1:]
    assert by_name == weightctl("ls", halves).stdout.splitlines()[1:]


def test_packed_numbers_say_how_they_are_cut(tmp_path: Path) -> None:
    small_checkpoints.awq(tmp_path)

    def halved(whole: Whole, ranks: int) -> Sharding:
        is_packed = whole.name.endswith("qweight")
        return axiswise(whole, ranks, 1) if is_packed else replicate(whole, ranks)

    weights = open_weights(tmp_path / "awq")
    out = write_shards(plan_of(weights, Grid(2), halved), tmp_path / "out")
    (tmp_path / "awq" / "config.json").rename(out / "rank-0" / "config.json")
    shown = weightctl("ls", out).stdout
    packed = [line for line in shown.splitlines() if "AWQ 4-bit, " in line and "x" in line]
    assert len(packed) > 1
    assert all("  columnwise 2x" in line for line in packed[1:])


@pytest.mark.parametrize("asked", [["ls"], ["ls", "-l"], ["ls", "--json", "--meta"]])
def test_it_loads_neither_numpy_nor_torch(asked: list[str], halves: Path) -> None:
    program = (
        "import sys, weightctl.cli\n"
        "try: weightctl.cli.app(sys.argv[1:], prog_name='weightctl')\n"
        "except SystemExit as done: assert not done.code\n"
        "sys.exit(str({'numpy', 'torch', 'rich', 'gguf'} & set(sys.modules) or ''))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *asked, str(halves)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr.strip() == ""
    assert done.stdout


def test_unfinished_shards_are_told_in_a_line(halves: Path, tmp_path: Path) -> None:
    document = document_of(halves)
    document["ranks"][0]["tensors"][0]["sha256"] = ""
    write_document(document, tmp_path)
    done = weightctl("ls", tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == (
        f"error: {tmp_path / 'manifest.json'}: the sharded checkpoint is incomplete: the "
        "run that wrote it was stopped"
    )


@pytest.mark.parametrize("asked", ["ls", "ls --hash", "diff --hash", "verify", "convert", "shard"])
def test_no_command_fails_badly_on_parts_that_are_not_whole(
    asked: str, halves: Path, tmp_path: Path
) -> None:
    document = document_of(halves)
    for rank in (0, 1):
        (tmp_path / f"rank-{rank}").mkdir()
    write_document(document, tmp_path)
    command, *options = asked.split()
    more = {"diff": [tmp_path], "convert": [tmp_path / "out"]}.get(command, [])
    more = [tmp_path / "out", "--tp", "2"] if command == "shard" else more
    done = weightctl(command, *options, tmp_path, *more)
    assert done.returncode == (1 if command == "verify" else 2)
    assert "rank 0: rank-0/model.safetensors is missing" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_cut_checkpoints_compare_and_convert_as_whole_ones(halves: Path, tmp_path: Path) -> None:
    done = weightctl("diff", "--hash", halves, TINY)
    assert (done.returncode, done.stdout.splitlines()[2]) == (0, "30 tensors, no difference")
    assert "2 ranks: tp 2" in done.stdout
    done = weightctl("convert", halves, tmp_path / "out.safetensors")
    assert done.returncode == 0
    expected = (TINY / "model.safetensors").read_bytes()
    assert (tmp_path / "out.safetensors").read_bytes() == expected


def test_what_ranks_have_is_reported_with_the_ranks_that_have_it() -> None:
    def cells(*shapes: tuple[int, ...] | None) -> tuple[str, str | None]:
        cell = rank_shapes((6, 4), shapes)
        return cell.text, cell.short

    assert cells((6, 4), (6, 4)) == ("", None)
    assert cells((3, 4), (3, 4)) == ("3x4", None)
    assert cells((6, 4), None) == ("6x4 on 0", None)
    assert cells((2, 4), (2, 4), (1, 4), (1, 4)) == ("2x4 on 0-1; 1x4 on 2-3", "2x4 / 1x4")
    assert cells((3, 4), (2, 4), None, (1, 4)) == (
        "3x4 on 0; 2x4 on 1; 1x4 on 3",
        "3x4 / 2x4 / ...",
    )


def test_ranks_are_named_by_the_ends_of_their_runs() -> None:
    assert join_ranks([0, 1, 2, 3, 6, 8, 9]) == "0-3, 6, 8-9"
    assert shorten_strategy("expert_parallel, head_aware_columnwise") == "head_aware"


def test_many_ranks_are_told_in_runs(tmp_path: Path) -> None:
    info = TensorInfo("w", (10, 4), ENCODINGS["Q8_0"])._replace(shape=(10, 64))
    path = write_whole(tmp_path / "w.gguf", "gguf", {"w": (info, bytes_for(info))}, {})
    out = write_shards(plan_of(open_weights(path), Grid(8)), tmp_path / "out")
    shown = weightctl("ls", out, "--quiet").stdout
    assert " ".join(shown.split()) == "w 10x64 Q8_0 680 B rowwise 8x 2x64 on 0-1; 1x64 on 2-7"


# The display of what each rank gets, for plans that are created by hand.


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
    assert str(grid) == text


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
    content = to_document(document("in", "out", plan, outcome, None))
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
