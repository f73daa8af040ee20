"""The list with one tensor per line: details, order, digests, and selection."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import small_checkpoints
from terminal import on_a_terminal, without_color

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Completed

    Run = Callable[..., Completed]


def names(done: Completed) -> list[str]:
    return [line.split()[0] for line in done.stdout.splitlines()]


def test_details_say_where_each_tensor_is(weightctl: Run, tmp_path: Path) -> None:
    path = small_checkpoints.split(tmp_path)
    heading, *lines = weightctl("ls", path, "-l").stdout.splitlines()
    assert heading.split() == ["tensor", "shape", "type", "size", "offset", "align", "file"]
    for line in lines:
        name, *_, offset, alignment, file = line.split()
        raw = (path / file).read_bytes()[int(offset) :]
        seed = 3 if name == "lm_head.weight" else 0
        assert raw == small_checkpoints.numbers("BF16", 4096, 16, seed=seed)[2]
        assert int(offset) % int(alignment) == 0
        assert int(offset) % (2 * int(alignment)) != 0


def test_quiet_details_have_no_heading(weightctl: Run, tmp_path: Path) -> None:
    lines = weightctl("ls", small_checkpoints.split(tmp_path), "-lq").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["model.embed_tokens.weight", "lm_head.weight"]


def test_lines_can_be_sorted(weightctl: Run, tmp_path: Path) -> None:
    tensors = {
        f"layers.{n}.w": small_checkpoints.numbers("F32", size)
        for n, size in ((10, 2), (2, 9), (1, 4))
    }
    path = small_checkpoints.write(tmp_path, "unsorted", tensors)
    in_file = ["layers.10.w", "layers.2.w", "layers.1.w"]
    assert names(weightctl("ls", path, "--sort", "offset")) == in_file
    assert names(weightctl("ls", path, "--sort", "name")) == in_file[::-1]
    assert names(weightctl("ls", path, "--sort", "size")) == [
        "layers.2.w",
        "layers.1.w",
        "layers.10.w",
    ]
    document = json.loads(weightctl("ls", path, "--sort", "size", "--json").stdout)
    assert document["tensors"][0]["name"] == "layers.2.w"


def test_a_wrong_order_is_a_usage_error_that_names_the_right_ones(
    weightctl: Run, tiny_llama: Path
) -> None:
    done = weightctl("ls", tiny_llama, "--sort", "color")
    assert done.returncode == 2
    assert "'name', 'size', 'offset'" in done.stderr


def test_hashes_are_of_the_bytes(weightctl: Run, tiny_llama: Path) -> None:
    document = json.loads(weightctl("ls", tiny_llama, "--hash", "--json").stdout)
    for tensor in document["tensors"]:
        raw = Path(tensor["file"]).read_bytes()[tensor["offset"] :][: tensor["bytes"]]
        assert tensor["sha256"] == hashlib.sha256(raw).hexdigest()
    lines = weightctl("ls", tiny_llama, "--hash").stdout.splitlines()
    digests = {tensor["name"]: tensor["sha256"] for tensor in document["tensors"]}
    assert {line.split()[0]: line.split()[5] for line in lines} == digests


def test_equal_tensors_are_found_by_their_hashes(weightctl: Run, tmp_path: Path) -> None:
    done = weightctl("ls", small_checkpoints.small(tmp_path), "--hash")
    (line,) = [each for each in done.stdout.splitlines() if "layers.1.input_layernorm" in each]
    assert line.endswith("  = model.layers.0.input_layernorm.weight")
    assert done.stderr == "note: 2 tensors have the same bytes as another (=)\n"


def test_tensors_without_elements_and_of_other_shapes_are_not_equal(
    weightctl: Run, tmp_path: Path
) -> None:
    tensors = {
        "a": small_checkpoints.numbers("F32", 0),
        "b": small_checkpoints.numbers("F32", 0),
        "c": small_checkpoints.numbers("F32", 2, 3),
        "d": small_checkpoints.numbers("F32", 3, 2),
    }
    done = weightctl("ls", small_checkpoints.write(tmp_path, "odd", tensors), "--hash")
    assert " = " not in done.stdout
    assert done.stderr == ""


def test_a_file_hashes_as_its_twin_in_the_other_byte_order(weightctl: Run, tmp_path: Path) -> None:
    little, big = (
        small_checkpoints.gguf(tmp_path),
        small_checkpoints.gguf(tmp_path, "big.gguf", ">"),
    )
    assert little.read_bytes() != big.read_bytes()
    assert weightctl("ls", little, "--hash").stdout == weightctl("ls", big, "--hash").stdout


def test_a_narrow_terminal_shows_the_beginning_of_hashes(tmp_path: Path) -> None:
    small_checkpoints.small(tmp_path)
    wide = on_a_terminal(200, "ls", "small", "--hash", cwd=tmp_path)
    narrow = without_color(on_a_terminal(80, "ls", "small", "--hash", cwd=tmp_path))
    digest = hashlib.sha256(small_checkpoints.numbers("BF16", 32, 16)[2]).hexdigest()
    assert digest in wide
    assert digest not in narrow
    assert digest[:12] in narrow
    assert all(len(line) <= 80 for line in narrow.splitlines())


@pytest.mark.parametrize("option", ["--flat", "-l", "--hash"])
def test_several_checkpoints_follow_one_another(
    weightctl: Run, tmp_path: Path, option: str
) -> None:
    small_checkpoints.small(tmp_path)
    small_checkpoints.tied(tmp_path)
    shown = weightctl("ls", "small", "tied", option, cwd=tmp_path).stdout
    first, second = shown.split("\n\n")
    assert first.startswith("small:\n")
    assert second.startswith("tied:\n")


def test_an_error_in_one_checkpoint_leaves_the_others(weightctl: Run, tmp_path: Path) -> None:
    small_checkpoints.small(tmp_path)
    small_checkpoints.tied(tmp_path)
    done = weightctl("ls", "small", "missing", "tied", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert [json.loads(line)["path"] for line in done.stdout.splitlines()] == ["small", "tied"]
    assert done.stderr.startswith("error: missing: No such file or directory\n")


def test_names_are_chosen_as_listings_show_them(weightctl: Run, tmp_path: Path) -> None:
    path = small_checkpoints.mixture(tmp_path)
    done = weightctl("ls", path, "--flat", "--include", "*.experts.[0-1,7].w?.*",
                     "--exclude", "*.1.*")  # fmt: skip
    assert names(done) == [
        f"model.layers.0.block_sparse_moe.experts.{expert}.w{part}.weight"
        for expert in (0, 7)
        for part in (1, 2, 3)
    ]


def test_totals_are_of_what_is_chosen(weightctl: Run, tmp_path: Path) -> None:
    path = small_checkpoints.small(tmp_path)
    shown = weightctl("ls", path, "--include", "*norm*", "--include", "*q_proj*").stdout
    assert "5 of 8 tensors, 560 parameters, 1.12 kB, 16.00 bits per weight" in shown
    document = json.loads(weightctl("ls", path, "--include", "*norm*", "--json").stdout)
    assert document["totals"]["parameters"] == 48
    assert len(document["tensors"]) == 3


@pytest.mark.parametrize("pattern", ["*mlp.up_proj.weight", "*mlp*qzeros"])
def test_a_weight_in_parts_is_chosen_by_its_name_or_a_part(
    weightctl: Run, tmp_path: Path, pattern: str
) -> None:
    shown = weightctl("ls", small_checkpoints.awq(tmp_path), "--include", pattern).stdout
    assert "2 of 7 tensors" in shown
    assert "512x256" in shown


def test_a_weight_in_parts_is_left_out_by_its_name(weightctl: Run, tmp_path: Path) -> None:
    path = small_checkpoints.awq(tmp_path)
    shown = weightctl("ls", path, "--exclude", "*_proj.weight").stdout
    assert "AWQ" not in shown.partition("\n\n")[2]
    assert "_proj" not in weightctl("ls", path, "--flat", "--exclude", "*_proj.weight").stdout
    assert "AWQ 4-bit" in weightctl("ls", path, "--exclude", "*.scales").stdout
    assert ".scales" not in weightctl("ls", path, "--flat", "--exclude", "*.scales").stdout


@pytest.mark.parametrize("view", [[], ["--flat"], ["--json"]])
def test_choosing_nothing_is_not_an_error(
    weightctl: Run, tiny_llama: Path, view: list[str]
) -> None:
    done = weightctl("ls", tiny_llama, "--include", "nothing*", *view)
    assert done.returncode == 0
    assert done.stderr.endswith(": none of the 30 tensors matches --include and --exclude\n")
    assert "weight " not in done.stdout.replace("per weight", "")
