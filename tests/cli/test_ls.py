"""The output of `ls` for people and scripts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import small_checkpoints
from terminal import on_a_terminal, without_color
from weightctl import Plan, WeightData
from weightctl.cli.outline import outline
from weightctl.families import FAMILIES
from weightctl.families.diffusion import DIFFUSION_FAMILIES
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.metadata import text
from weightctl.weights.tree import Checkpoint, header_of, root_of
from weightctl.write.save import save
from weightctl.write.targets import target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from conftest import Completed

    Run = Callable[..., Completed]


def tree_of(shapes: dict[str, tuple[int, ...]]) -> Checkpoint:
    return as_checkpoint(
        {
            name: WeightData.from_numpy(np.zeros(shape, np.float32), name)
            for name, shape in shapes.items()
        }
    )


def labels(
    names: Iterable[str] | dict[str, tuple[int, ...]], limit: int | None = None
) -> list[str]:
    shapes = names if isinstance(names, dict) else dict.fromkeys(names, (2, 2))
    weights = tree_of(shapes)
    lines = outline(
        root_of(weights), header_of(weights).tensors, lambda i: (i.shape, 1, i.nbytes), limit
    )
    return [f"{'  ' * line.depth}{line.label} x{line.times}" for line in lines]


def test_layers_that_are_alike_are_folded() -> None:
    assert labels(f"layers.{i}.{j}.weight" for i in range(12) for j in "ab") == [
        "layers.[0-11] x12",
        "  a.weight x1",
        "  b.weight x1",
    ]


def test_an_odd_layer_is_shown_apart() -> None:
    shapes = {f"layers.{i}.{j}": (2, 2) for i in range(6) for j in "ab"} | {"layers.3.a": (4, 4)}
    assert labels(shapes) == [
        "layers x1",
        "  [0-2,4-5] x5",
        "    a x1",
        "    b x1",
        "  3 x1",
        "    a x1",
        "    b x1",
    ]


def test_experts_inside_layers_are_folded_too() -> None:
    names = [
        f"layers.{i}.experts.{e}.{part}"
        for i in range(2)
        for e in range(8)
        for part in ("up", "down")
    ]
    assert labels([*names, "layers.0.norm", "layers.1.norm"]) == [
        "layers.[0-1] x2",
        "  experts.[0-7] x8",
        "    up x1",
        "    down x1",
        "  norm x1",
    ]


def test_a_branch_with_one_thing_below_shares_its_line() -> None:
    assert labels(["a.b.c.weight"]) == ["a.b.c.weight x1"]


def test_depth_cuts_the_tree() -> None:
    assert labels(
        [f"model.layers.{i}.{j}" for i in range(2) for j in "ab"] + ["model.norm"], 1
    ) == ["model x1"]


def test_numbered_tensors_fold() -> None:
    assert labels(["scale.0", "scale.1", "scale.2"]) == ["scale.[0-2] x3"]


def test_ls_shows_the_model_at_a_glance(weightctl: Run, tiny_llama: Path) -> None:
    lines = weightctl("ls", tiny_llama).stdout.splitlines()
    assert lines[0] == f"{tiny_llama}: llama, safetensors"
    assert lines[1] == "30 tensors, 1.94 M parameters, 3.87 MB, 16.00 bits per weight"
    assert lines[2] == "file 3.87 MB, BF16, context length 512"
    assert any(
        re.fullmatch(r"  layers\.\[0-2\]  x3 +3 x 9 tensors +3\.35 MB", line) for line in lines
    )
    assert all(len(line) <= 80 for line in lines[1:])


def test_the_title_has_the_path_as_typed_and_the_name_where_it_is_another(
    weightctl: Run, tmp_path: Path
) -> None:
    small_checkpoints.write(
        tmp_path, "here", {"a": small_checkpoints.numbers("F32", 2)}, _name_or_path="org/Model"
    )
    small_checkpoints.split(tmp_path)

    def title(path: str) -> str:
        return weightctl("ls", path, cwd=tmp_path).stdout.splitlines()[0]

    assert title("here/") == "here/: org/Model, safetensors"
    assert title("split") == "split: safetensors, 2 files"
    small_checkpoints.write(
        tmp_path, "same", {"a": small_checkpoints.numbers("F32", 2)}, _name_or_path="same"
    )
    assert title("./same") == "./same: safetensors"


def test_quiet_leaves_out_the_summary(weightctl: Run, tiny_llama: Path) -> None:
    done = weightctl("ls", tiny_llama, "--quiet")
    assert done.stdout.startswith("lm_head.weight ")
    assert done.stderr == ""


def test_flat_gives_each_tensor_a_line_to_cut(weightctl: Run, tiny_llama: Path) -> None:
    lines = [line.split() for line in weightctl("ls", tiny_llama, "--flat").stdout.splitlines()]
    assert len(lines) == 30
    assert ["model.layers.2.self_attn.k_proj.weight", "64x256", "BF16", "32.8", "kB"] in lines


def test_json_says_where_each_tensor_is(weightctl: Run, tiny_llama: Path) -> None:
    listed = json.loads(weightctl("ls", tiny_llama, "--json").stdout)
    assert listed["format"] == "safetensors"
    assert listed["architecture"] == "llama"
    assert listed["totals"]["parameters"] == 1_935_104
    (norm,) = [each for each in listed["tensors"] if each["name"] == "model.norm.weight"]
    raw = Path(norm["file"]).read_bytes()
    from weightctl import open_weights

    expected = open_weights(tiny_llama)["model.norm.weight"].data().view()
    assert raw[norm["offset"] : norm["offset"] + norm["bytes"]] == expected
    assert (norm["shape"], norm["encoding"]) == ([256], "BF16")


def test_a_reader_that_stops_early_is_not_an_error(tmp_path: Path) -> None:
    path = tmp_path / "many.safetensors"
    save(Plan.copy(tree_of({f"t{i}.{i % 7}x": (1,) for i in range(9000)}), "safetensors"),
         target(str(path)))  # fmt: skip
    done = subprocess.run(
        f"{sys.executable} -m weightctl ls --flat {path} | head -n 1; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[1] == "0"


def test_tied_names_are_shown_and_counted_once(weightctl: Run, tmp_path: Path) -> None:
    weights = tree_of({"embed.weight": (8, 4)})
    tied = as_checkpoint(
        {"embed.weight": weights["embed.weight"].data()}, {"head.weight": text("embed.weight")}
    )
    path = tmp_path / "tied.safetensors"
    save(Plan.copy(tied, "safetensors"), target(str(path)))
    shown = weightctl("ls", path).stdout
    assert "1 tensor, 32 parameters" in shown
    assert re.search(r"head\.weight = embed\.weight +tied", shown)


def test_a_name_cannot_write_to_the_terminal(weightctl: Run, tmp_path: Path) -> None:
    path = tmp_path / "evil.safetensors"
    save(Plan.copy(tree_of({"a\x1b[2Jb\nc": (1,)}), "safetensors"), target(str(path)))
    for arguments in ([], ["--flat"], ["--json"]):
        shown = weightctl("ls", path, *arguments).stdout
        assert "\x1b" not in shown
        assert "a\\x1b[2Jb" in shown or "a\\u001b[2Jb" in shown


@pytest.mark.parametrize("columns", [80, 200])
def test_lines_fit_a_terminal(columns: int, tmp_path: Path) -> None:
    path = tmp_path / "long.safetensors"
    names = {f"a_rather_long_name_{'x' * 40}_{kind}.weight_of_something": (8, 8) for kind in "abc"}
    save(Plan.copy(tree_of(names), "safetensors"), target(str(path)))
    shown = without_color(on_a_terminal(columns, "ls", path))
    lines = shown.splitlines()
    assert len(lines) == 7
    assert all(len(line) <= columns for line in lines[1:])
    assert ("…" in shown) == (columns == 80)
    assert "weight_of_something" in shown


def test_color_is_for_terminals_that_want_it(weightctl: Run, tiny_llama: Path) -> None:
    assert "\x1b[" in on_a_terminal(80, "ls", tiny_llama)
    assert "\x1b[" not in on_a_terminal(80, "ls", tiny_llama, NO_COLOR="1")
    assert "\x1b[" not in on_a_terminal(80, "ls", tiny_llama, TERM="dumb")
    assert "\x1b[" in on_a_terminal(80, "ls", "nowhere")
    assert "\x1b[" not in on_a_terminal(80, "ls", "nowhere", NO_COLOR="1")
    assert "\x1b[" not in on_a_terminal(80, "ls", "nowhere", TERM="dumb")
    for options in ([], ["--flat"], ["-l"], ["--hash"], ["--meta"], ["--json"]):
        done = weightctl("ls", tiny_llama, *options)
        assert "\x1b" not in done.stdout + done.stderr


def test_an_encoding_without_the_letters_is_not_a_traceback(
    weightctl_process: Run, tmp_path: Path
) -> None:
    path = tmp_path / "名前.safetensors"
    save(Plan.copy(tree_of({"重み": (1,)}), "safetensors"), target(str(path)))
    done = weightctl_process("ls", path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "\\u91cd\\u307f" in done.stdout


def test_a_missing_file_is_an_error_with_a_hint(weightctl: Run, tmp_path: Path) -> None:
    done = weightctl("ls", tmp_path / "nothing")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {tmp_path / 'nothing'}: No such file or directory")
    assert "hint: " in done.stderr


def test_an_unknown_option_is_a_usage_error(weightctl: Run) -> None:
    assert weightctl("ls", "--bogus").returncode == 2


def test_version_is_that_of_the_package(weightctl: Run) -> None:
    import weightctl as package

    shown = weightctl("--version").stdout.splitlines()
    assert shown[0] == f"weightctl {package.__version__}"


def test_version_says_which_kernels_serve(weightctl_process: Run) -> None:
    from weightctl.kernels import active, levels

    none = "none; NumPy is used instead (no C compiler was found during installation)"
    assert weightctl_process("--version").stdout.splitlines()[1] == f"kernels: {active() or none}"
    switched = weightctl_process("--version", WEIGHTCTL_KERNELS="off").stdout.splitlines()[1]
    assert switched.startswith("kernels: none; NumPy is used instead (")
    assert ("no C compiler" in switched) is not bool(levels())


def test_version_says_which_level_is_none(weightctl_process: Run) -> None:
    from weightctl.kernels import levels

    shown = weightctl_process("--version", WEIGHTCTL_KERNELS="nonsense").stdout.splitlines()[1]
    assert ("'nonsense' is not supported here" in shown) is bool(levels())


def test_wide_letters_keep_columns_and_lines_whole(tmp_path: Path) -> None:
    tensors = {
        "重み" * 30: small_checkpoints.numbers("F32", 2),
        "b" * 70: small_checkpoints.numbers("F32", 3),
    }
    small_checkpoints.write(tmp_path, "wide", tensors)
    shown = on_a_terminal(80, "ls", "wide", "--quiet", cwd=tmp_path, NO_COLOR="1")
    first, second = shown.splitlines()
    cells = sum(2 if unicodedata.east_asian_width(char) == "W" else 1 for char in first)
    assert cells in {len(second), len(second) - 1}
    assert len(second) <= 80


def test_several_checkpoints_follow_one_another(weightctl: Run, tmp_path: Path) -> None:
    small_checkpoints.small(tmp_path)
    small_checkpoints.tied(tmp_path)
    shown = weightctl("ls", "small", "tied", "--depth", "1", cwd=tmp_path).stdout
    first, second = shown.split("\n\ntied: ")
    assert first.startswith("small: llama, safetensors\n8 tensors")
    assert second.startswith("safetensors\n1 tensor, ")


def test_a_checkpoint_without_tensors_is_listed(weightctl: Run, tmp_path: Path) -> None:
    small_checkpoints.write(tmp_path, "bare", {})
    done = weightctl("ls", "bare", cwd=tmp_path)
    assert done.stdout == "bare: safetensors\n0 tensors, 0 parameters, 0 B\nfile 42 B\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_the_supported_families_are_listed_without_a_model(weightctl: Run) -> None:
    done = weightctl("ls", "--families")
    assert done.returncode == 0
    text, diffusion = (part.splitlines() for part in done.stdout.split("\n\n"))
    assert [line.split("  ")[0] for line in text] == ["family", *(sorted(FAMILIES))]
    assert [line.split("  ")[0] for line in diffusion] == [
        "diffusion family",
        *sorted(DIFFUSION_FAMILIES),
    ]
    assert re.search(r"^mixtral +mixtral +llama +yes +yes$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("arguments", [("--families", "--json"), ("--json", "--families")])
def test_the_supported_families_are_listed_as_json(weightctl: Run, arguments: tuple[str]) -> None:
    families = json.loads(weightctl("ls", *arguments).stdout)["families"]
    assert [each["family"] for each in families] == sorted(FAMILIES)
    (found,) = (each for each in families if each["family"] == "mixtral")
    assert found == {
        "family": "mixtral",
        "model_types": ["mixtral"],
        "gguf_architecture": "llama",
        "transformers_classes": ["MixtralForCausalLM"],
        "runs_in_verify": True,
        "vllm_layout": True,
    }
