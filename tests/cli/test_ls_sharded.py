"""A sharded checkpoint is listed as one, with how each tensor is split."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

import small_checkpoints
from sharded_files import bytes_for, document_of, plan_of, write_document, write_shards, write_whole
from terminal import on_a_terminal, without_color
from weightctl import open_weights
from weightctl.cli.splits import brief, join_ranks, rank_shapes
from weightctl.dtype import ENCODINGS
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid, Sharding, Whole, axiswise, replicate
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Path:
    out = tmp_path_factory.mktemp("cut") / "halves"
    return write_shards(shard_plan(open_weights(tiny_llama), Grid(2)), out)


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Path:
    out = tmp_path_factory.mktemp("cut") / "stages"
    return write_shards(shard_plan(open_weights(tiny_llama), Grid(2, 1, 2)), out)


def lines_with(shown: str, *words: str) -> list[str]:
    """Return the lines that begin with one of these words, with one space between words."""
    lines = (" ".join(line.split()) for line in shown.splitlines())
    return [line for line in lines if line.startswith(words)]


def test_a_tree_says_how_tensors_are_cut_and_what_ranks_have(weightctl: Run, halves: Path) -> None:
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


def test_of_stages_it_says_who_has_a_layer_and_folds_those_that_are_alike(
    weightctl: Run, stages: Path
) -> None:
    shown = weightctl("ls", stages).stdout
    assert shown.splitlines()[0].endswith("4 ranks: tp 2 x pp 2")
    assert lines_with(shown, "q_proj", "[0-1]") == [
        "[0-1] x2 2 x 9 tensors 2.23 MB",
        "q_proj.weight 256x256 BF16 131 kB rowwise 2x 128x256 on 0-1",
        "q_proj.weight 256x256 BF16 131 kB rowwise 2x 128x256 on 2-3",
    ]


def test_what_one_rank_alone_has_is_whole_there(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    out = write_shards(shard_plan(open_weights(tiny_llama), Grid(1, 1, 2)), tmp_path / "out")
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


def test_a_flat_list_has_the_same_columns(weightctl: Run, stages: Path) -> None:
    shown = weightctl("ls", stages, "--flat", "--include", "lm_head*").stdout
    assert " ".join(shown.split()) == "lm_head.weight 512x256 BF16 262 kB rowwise 2x 256x256 on 2-3"


def test_a_long_list_tells_the_files_of_ranks_apart(weightctl: Run, stages: Path) -> None:
    shown = weightctl("ls", stages, "-l").stdout.splitlines()
    assert shown[0].split()[-4:] == ["file", "split", "per", "rank"]
    head = next(line for line in shown if line.startswith("lm_head"))
    assert "  rank-2/model.safetensors  " in head


def test_digests_are_those_of_the_whole_tensors(
    weightctl: Run, halves: Path, tiny_llama: Path
) -> None:
    def digests(path: Path) -> dict[str, str]:
        listed = json.loads(weightctl("ls", path, "--json", "--hash").stdout)
        return {each["name"]: each["sha256"] for each in listed["tensors"]}

    assert digests(halves) == digests(tiny_llama)


def test_json_says_the_same_and_is_as_its_schema_says(weightctl: Run, stages: Path) -> None:
    schema: Any = json.loads(files("weightctl").joinpath("schemas/ls.json").read_text())
    listed = json.loads(weightctl("ls", stages, "--json").stdout)
    Draft202012Validator(schema).validate(listed)
    assert listed["grid"] == {"tp": 2, "ep": 1, "pp": 2}
    assert len(listed["files"]) == 4
    (head,) = [each for each in listed["tensors"] if each["name"] == "lm_head.weight"]
    ranks = [None, None, [256, 256], [256, 256]]
    assert head["sharding"] == {"strategy": "rowwise", "ranks": ranks}
    assert head["file"] == listed["files"][2]


def test_of_a_checkpoint_that_is_not_cut_json_says_nothing_of_it(
    weightctl: Run, tiny_llama: Path
) -> None:
    listed = json.loads(weightctl("ls", tiny_llama, "--json").stdout)
    assert listed["grid"] is None
    assert {each["sharding"] for each in listed["tensors"]} == {None}


def test_the_directory_of_a_rank_is_that_ranks_alone(weightctl: Run, halves: Path) -> None:
    shown = weightctl("ls", halves / "rank-1").stdout
    assert shown.splitlines()[0] == f"{halves / 'rank-1'}: safetensors"
    assert lines_with(shown, "lm_head") == ["lm_head.weight 256x256 BF16 131 kB"]


def test_of_one_ranks_part_it_is_reported_where_the_whole_is(weightctl: Run, halves: Path) -> None:
    for path in (halves / "rank-1", halves / "rank-1" / "model.safetensors"):
        note = weightctl("ls", path).stderr
        assert (
            note == "note: this file has only the tensors of one rank; "
            f"open {halves} for the whole checkpoint\n"
        )
    assert weightctl("ls", halves).stderr == ""


def test_the_manifest_may_be_named_too(weightctl: Run, halves: Path) -> None:
    by_name = weightctl("ls", halves / "manifest.json").stdout.splitlines()[1:]
    assert by_name == weightctl("ls", halves).stdout.splitlines()[1:]


def test_packed_numbers_say_how_they_are_cut(weightctl: Run, tmp_path: Path) -> None:
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


def test_unfinished_shards_are_told_in_a_line(weightctl: Run, halves: Path, tmp_path: Path) -> None:
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
    asked: str, weightctl: Run, halves: Path, tmp_path: Path
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


def test_cut_checkpoints_compare_and_convert_as_whole_ones(
    weightctl: Run, halves: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    done = weightctl("diff", "--hash", halves, tiny_llama)
    assert (done.returncode, done.stdout.splitlines()[2]) == (0, "30 tensors, no difference")
    assert "2 ranks: tp 2" in done.stdout
    done = weightctl("convert", halves, tmp_path / "out.safetensors")
    assert done.returncode == 0
    expected = (tiny_llama / "model.safetensors").read_bytes()
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
    assert brief("expert_parallel, head_aware_columnwise") == "head_aware"


def test_many_ranks_are_told_in_runs(weightctl: Run, tmp_path: Path) -> None:
    info = TensorInfo("w", (10, 4), ENCODINGS["Q8_0"])._replace(shape=(10, 64))
    path = write_whole(tmp_path / "w.gguf", "gguf", {"w": (info, bytes_for(info))}, {})
    out = write_shards(plan_of(open_weights(path), Grid(8)), tmp_path / "out")
    shown = weightctl("ls", out, "--quiet").stdout
    assert " ".join(shown.split()) == "w 10x64 Q8_0 680 B rowwise 8x 2x64 on 0-1; 1x64 on 2-7"
