"""The output of `diff` for people and scripts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import small_checkpoints
from build import safetensors_of
from commands import TINY
from commands import run_command as weightctl
from terminal import on_a_terminal
from weightctl import Plan, WeightData, diff, open_weights, stat, verify
from weightctl.cli import app
from weightctl.errors import WeightctlError
from weightctl.inspection.metadata import compare_metadata
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.info import Header
from weightctl.weights.metadata import MetadataValue
from weightctl.write.save import save
from weightctl.write.targets import target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from conftest import Completed


def differences(done: Completed) -> dict[str, Any]:
    return {each["name"]: each for each in json.loads(done.stdout)["differences"]}


def test_the_same_is_not_a_difference_in_any_format(tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    assert weightctl("convert", TINY, copy, "--names", "keep", "--quiet").returncode == 0
    done = weightctl("diff", TINY, copy)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, summary = done.stdout.splitlines()
    assert (first, second) == (f"A: {TINY} (llama, safetensors)", f"B: {copy} (gguf)")
    assert summary == "30 tensors, no difference; --hash and --values compare bytes and values"
    done = weightctl("diff", TINY, copy, "--hash")
    assert done.stdout.splitlines()[2] == "30 tensors, no difference"
    assert done.returncode == 0


def test_other_encodings_are_shown_folded(tmp_path: Path) -> None:
    quantized = tmp_path / "q.gguf"
    asked = "--quant", "q8_0", "--names", "keep", "-q"
    assert weightctl("convert", TINY, quantized, *asked).returncode == 0
    done = weightctl("diff", TINY, quantized, "--exclude", "*norm*")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[-1] == "23 of 23 tensors differ: 23 in encoding"
    assert re.match(r"  +layers\.\[0-2\]  x3 +3 x 7 tensors$", lines[6])
    assert re.match(r"~ +down_proj\.weight +256x512 +BF16 -> Q8_0$", lines[8])


def test_tensors_of_one_side_and_other_shapes_are_shown(tmp_path: Path) -> None:
    one = small_checkpoints.write(
        tmp_path,
        "one",
        {"a": small_checkpoints.numbers("F32", 2), "b": small_checkpoints.numbers("F32", 3)},
    )
    other = small_checkpoints.write(
        tmp_path,
        "other",
        {"b": small_checkpoints.numbers("BF16", 4), "c": small_checkpoints.numbers("F32", 5)},
    )
    done = weightctl("diff", one, other)
    assert done.returncode == 1
    assert done.stdout.splitlines()[3:] == [
        "- a       2  F32",
        "~ b  3 -> 4  F32 -> BF16",
        "+ c       5  F32",
        "",
        "--hash and --values compare bytes and values",
        "3 of 3 tensors differ: 1 only in A, 1 only in B, 1 in shape, 1 in encoding",
    ]
    found = differences(weightctl("diff", one, other, "--json"))
    assert found["a"]["second"] is None
    assert found["b"]["of"] == ["shape", "encoding"]
    assert found["b"]["first"] == {"shape": [3], "encoding": "F32", "bits_per_weight": None}
    assert found["c"]["first"] is None


def test_bytes_are_compared_with_hash(tmp_path: Path) -> None:
    def checkpoint(name: str, seed: int) -> Path:
        tensors = {
            "a": small_checkpoints.numbers("F32", 8),
            "b": small_checkpoints.numbers("F32", 8, seed=seed),
        }
        return small_checkpoints.write(tmp_path, name, tensors)

    one, other = checkpoint("one", 1), checkpoint("other", 2)
    assert weightctl("diff", one, other).returncode == 0
    done = weightctl("diff", one, other, "--hash")
    assert done.returncode == 1
    assert done.stdout.splitlines()[3:] == [
        "~ b  8  F32  bytes differ",
        "",
        "1 of 2 tensors differs: 1 in bytes",
    ]


def test_a_weight_in_parts_is_compared_as_one(tmp_path: Path) -> None:
    quantized = small_checkpoints.awq(tmp_path)
    plain = small_checkpoints.write(
        tmp_path,
        "plain",
        {
            "model.layers.0.mlp.up_proj.weight": small_checkpoints.numbers("F16", 512, 256),
            "model.layers.0.self_attn.q_proj.weight": small_checkpoints.numbers("F16", 256, 128),
        },
    )
    done = weightctl("diff", quantized, plain, "--include", "*layers.0.*_proj*", "--json")
    found = differences(done)
    up = found["model.layers.0.mlp.up_proj.weight"]
    assert (up["of"], up["first"]["encoding"]) == (["encoding"], "AWQ 4-bit")
    assert found["model.layers.0.self_attn.q_proj.weight"]["of"] == ["shape", "encoding"]


def test_every_part_of_a_weight_is_hashed(tmp_path: Path) -> None:
    one, other = small_checkpoints.awq(tmp_path, "one"), small_checkpoints.awq(tmp_path, "other")
    path = other / "model.safetensors"
    raw = bytearray(path.read_bytes())
    document = json.loads(
        weightctl("ls", other, "--json", "--include", "*0.*up_proj.qzeros").stdout
    )
    raw[document["tensors"][0]["offset"]] ^= 1
    path.write_bytes(raw)
    found = differences(weightctl("diff", one, other, "--hash", "--json"))
    assert {name: each["of"] for name, each in found.items()} == {
        "model.layers.0.mlp.up_proj.weight": ["bytes"]
    }


def test_a_tied_name_counts_with_what_it_is_tied_to(tmp_path: Path) -> None:
    stored = {
        "model.embed_tokens.weight": small_checkpoints.numbers("F32", 8, 4),
        "lm_head.weight": small_checkpoints.numbers("F32", 8, 4),
    }
    untied = small_checkpoints.write(tmp_path, "untied", stored)
    done = weightctl("diff", small_checkpoints.tied(tmp_path), untied, "--hash")
    assert done.stdout.splitlines()[-1] == "2 tensors, no difference"


def changed_metadata(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    weightctl("convert", TINY, first)
    weightctl("convert", TINY, second)
    weightctl(
        *("edit", second, "--set", "general.name=Other", "--set", "llama.rope.freq_base=5e5"),
        *("--set", "note=text", "--unset", "general.size_label"),
    )
    return first, second


def test_keys_of_the_metadata_that_differ_are_listed(tmp_path: Path) -> None:
    first, second = changed_metadata(tmp_path)
    done = weightctl("diff", first, second)
    assert done.returncode == 1
    assert done.stdout.splitlines()[2:] == [
        "",
        "metadata",
        "~ general.name          Tiny Llama -> Other",
        "- general.size_label    1.9M",
        "~ llama.rope.freq_base  10000 -> 500000",
        "+ note                  text",
        "",
        "30 tensors, no difference; --hash and --values compare bytes and values",
    ]
    (key, *_) = json.loads(weightctl("diff", first, second, "--json").stdout)["metadata"]
    assert key == {"key": "general.name", "first": "Tiny Llama", "second": "Other"}


def test_values_and_patterns_compare_no_metadata(tmp_path: Path) -> None:
    first, second = changed_metadata(tmp_path)
    for options in (["--values"], ["--include", "*"]):
        assert weightctl("diff", first, second, *options).returncode == 0


def test_of_arrays_the_first_different_element_is_shown() -> None:
    def header(kind: str, content: object) -> Header:
        return Header("gguf", ("a.gguf",), {}, {}, {"tokens": MetadataValue(kind, content)})

    texts = header("array[string]", ["a", "b", "c"])
    for other, second in (
        (header("array[string]", ["a", "x", "c"]), "[3] x at 1"),
        (header("array[string]", ["a"]), "[1]"),
        (header("string", "a"), "a"),
    ):
        (found,) = compare_metadata(texts, other)
        assert found.second == second
    (found,) = compare_metadata(header("u32", 7), header("u64", 7))
    assert found == ("tokens", "7 (u32)", "7 (u64)")
    assert compare_metadata(texts, texts) == ()


def test_quiet_only_has_its_exit_code(tmp_path: Path) -> None:
    small, awq = small_checkpoints.small(tmp_path), small_checkpoints.awq(tmp_path)
    different = weightctl("diff", small, awq, "--quiet")
    assert (different.returncode, different.stdout, different.stderr) == (1, "", "")
    same = weightctl("diff", small, small, "--quiet")
    assert (same.returncode, same.stdout, same.stderr) == (0, "", "")


def test_a_note_says_where_no_name_is_in_both(tmp_path: Path) -> None:
    done = weightctl("diff", small_checkpoints.small(tmp_path), small_checkpoints.gguf(tmp_path))
    assert done.returncode == 1
    assert "A and B have no tensor name in common" in done.stderr
    assert "in common" not in weightctl("diff", tmp_path / "small", tmp_path / "small").stderr


@pytest.mark.parametrize("values", [False, True])
def test_names_with_a_prefix_are_paired_without_it(values: bool) -> None:
    stored = {f"layers.{layer}.weight": np.ones((2, 3), "f4") for layer in range(4)}
    wrapped = {f"module.{name}": array for name, array in stored.items()}
    wrapped["module.layers.2.weight"] = np.zeros((2, 3), "f4")
    wrapped["module.step"] = wrapped.pop("module.layers.3.weight")
    for first, second, of in ((stored, wrapped, "B"), (wrapped, stored, "A")):
        found = diff(first, second, hashes=not values, values=values)
        assert found.paired == f"by names, without the prefix `module.` of {of}"
        pairs = {(each.name, each.second_name): each.of for each in found.differences}
        plain, prefixed = "layers.2.weight", "module.layers.2.weight"
        assert pairs == {
            (plain, prefixed) if of == "B" else (prefixed, plain): (
                "values" if values else "bytes",
            ),
            ("layers.3.weight", None if of == "B" else "layers.3.weight"): (),
            ("module.step", "module.step" if of == "B" else None): (),
        }
    both = {**wrapped, "layers.2.weight": np.ones((2, 3), "f4")}
    assert "prefix" not in diff(stored, both, hashes=not values, values=values).paired
    part = diff(stored, wrapped, include="*.2.*", hashes=True)
    assert [each.second_name for each in part.differences] == ["module.layers.2.weight"]


def test_a_part_that_fits_several_prefixes_is_refused() -> None:
    part = {"gate.weight": np.ones((2, 3), "f4"), "up.weight": np.ones((2, 3), "f4")}
    model = {f"layers.{layer}.{name}": part[name] for layer in range(6) for name in part}
    for values in (False, True):
        with pytest.raises(WeightctlError, match="the names of A fit several prefixes") as raised:
            diff(part, model, values=values)
        assert "`layers.0.`, `layers.1.`, `layers.2.`, `layers.3.` and 2 more" in str(raised.value)
        assert "--rename '^=layers.0.'" in raised.value.hint


def test_a_node_of_a_tree_is_its_tensors() -> None:
    with open_weights(TINY) as weights:
        node = weights.model.layers[1].mlp
        assert diff(node, node).tensors == len(stat(node).tensors) == 3
        assert diff(node, weights.model.layers[1]).tensors == 9
        assert verify(node, checks=["finite"]).results["finite"].summary.startswith("3 tensors")


def test_a_missing_checkpoint_is_an_error(tmp_path: Path) -> None:
    done = weightctl("diff", small_checkpoints.small(tmp_path), tmp_path / "missing")
    assert (done.returncode, done.stdout) == (2, "")
    assert "missing: No such file" in done.stderr


def test_signs_have_colors_on_a_terminal(tmp_path: Path) -> None:
    small_checkpoints.small(tmp_path)
    small_checkpoints.awq(tmp_path)
    shown = on_a_terminal(80, "diff", "small", "awq", cwd=tmp_path)
    assert "\x1b[31m-   norm.weight" in shown
    assert "\x1b[32m+     mlp.up_proj" in shown
    assert "\x1b[33m~   embed_tokens" in shown


def test_a_choice_of_nothing_is_not_sameness() -> None:
    done = weightctl("diff", TINY, TINY, "--include", "nothing*")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no tensor of A or B matches --include and --exclude" in done.stderr


def test_a_reader_that_stops_early_does_not_hide_what_went_wrong() -> None:
    command = [sys.executable, "-m", "weightctl", "ls", "nowhere", str(TINY), "--flat"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.DEVNULL, check=False)
    os.close(write)
    assert done.returncode == 2


# `diff` pairs tensors across naming conventions, and `diff --values` measures how they differ.


class Shown(NamedTuple):
    """What a command has printed, and its exit code."""

    code: int
    lines: list[str]
    notes: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.lines[0])
        return found


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Shown]:
    def run_command(*arguments: object) -> Shown:
        code = app([str(each) for each in arguments], standalone_mode=False) or 0
        shown = capsys.readouterr()
        return Shown(code, shown.out.splitlines(), shown.err)

    return run_command


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("diff") / "tiny.gguf"
    assert not app(["convert", str(TINY), str(out), "-q"], standalone_mode=False)
    return out


def write(path: Path, **arrays: NDArray[Any]) -> Path:
    tensors = {
        name.replace("__", "."): WeightData.from_numpy(each, name.replace("__", "."))
        for name, each in arrays.items()
    }
    save(Plan.copy(as_checkpoint(tensors), "safetensors"), target(str(path)))
    return path


def changed_copy(tiny_llama: Path, out: Path, name: str, **values: float) -> Path:
    """Copy a checkpoint in bf16 and set elements of one tensor to the bits of some values."""
    shutil.copytree(tiny_llama, out)
    path = out / "model.safetensors"
    header = open_weights(path).header
    raw = bytearray(path.read_bytes())
    for place, value in values.items():
        start = header.extents[name].offset + 2 * int(place.removeprefix("at"))
        raw[start : start + 2] = np.float32(value).tobytes()[2:]
    path.write_bytes(raw)
    return out


def test_a_directory_and_its_gguf_are_paired_by_the_names_of_the_family(
    run: Callable[..., Shown], gguf: Path
) -> None:
    done = run("diff", TINY, gguf)
    assert done.code == 1
    assert done.lines[2] == (
        "tensors are paired by the tensor names of llama in Hugging Face and in GGUF"
    )
    assert done.lines[-1] == "7 of 30 tensors differ: 7 in encoding"
    assert any("layers.[0-2]  x3" in line for line in done.lines)
    assert "in common" not in done.notes
    found = run("diff", TINY, gguf, "--json").document
    assert found["paired"].startswith("by the tensor names of llama")
    norm = found["differences"][-1]
    names = ("model.norm.weight", "output_norm.weight")
    assert (norm["name"], norm["second_name"]) == names


@pytest.mark.parametrize("turned", [False, True])
def test_a_lossless_conversion_has_the_same_values_in_either_direction(
    run: Callable[..., Shown], gguf: Path, turned: bool
) -> None:
    paths = (gguf, TINY) if turned else (TINY, gguf)
    done = run("diff", *paths, "--values")
    assert done.code == 0
    assert done.lines[-1] == ("30 tensors have the same values; 7 tensors have another encoding")


def test_weights_that_cannot_be_decoded_are_compared_without_values_only(
    run: Callable[..., Shown], tmp_path: Path
) -> None:
    parts = {
        "l.weight": ("F8_E4M3", (4, 16), bytes(64)), "l.weight_scale": ("F32", (7, 7), bytes(196)),
    }  # fmt: skip
    paths = [tmp_path / name for name in ("a.safetensors", "b.safetensors")]
    for path in paths:
        path.write_bytes(safetensors_of(parts))
    assert run("diff", *paths).lines[-1].startswith("2 tensors, no difference")
    with pytest.raises(WeightctlError, match="looks like a part of a quantized weight"):
        run("diff", *paths, "--values")


def test_bytes_are_compared_in_the_order_of_rows_of_one_convention(
    run: Callable[..., Shown], gguf: Path
) -> None:
    done = run("diff", TINY, gguf, "--hash", "--exclude", "*norm*")
    assert (done.code, done.lines[-1]) == (0, "23 tensors, no difference")


def test_a_quantized_model_is_shown_with_the_largest_change_first(
    run: Callable[..., Shown], tmp_path: Path
) -> None:
    quantized = tmp_path / "q.gguf"
    run("convert", TINY, quantized, "--quant", "q4_k", "-q")
    done = run("diff", TINY, quantized, "--values")
    assert done.code == 1
    heading = next(line for line in done.lines if line.startswith("tensor "))
    assert heading.split() == ["tensor", "type", "relative", "RMSE", "largest", "difference"]
    assert done.lines[-2:] == [
        "23 of 30 tensors differ: 23 in values",
        "7 tensors have the same values; 30 tensors have another encoding",
    ]
    found = run("diff", TINY, quantized, "--values", "--json").document
    assert found["compared"] == ["shape", "values"]
    errors = [each["change"]["relative_rmse"] for each in found["differences"]]
    assert errors == sorted(errors, reverse=True)
    assert all(0.001 < error < 0.15 for error in errors)
    assert all(each["change"]["max_difference"] > 0 for each in found["differences"])
    layers = found["layers"]
    assert [each["layer"] for each in layers] == [0, 1, 2, None]
    assert [(each["changed"], each["tensors"]) for each in layers[:3]] == [(7, 9)] * 3
    assert all(0.001 < each["change"]["relative_rmse"] < 0.15 for each in layers)


def test_the_figures_are_in_relation_to_the_first_checkpoint(
    run: Callable[..., Shown], tmp_path: Path
) -> None:
    one = write(tmp_path / "one.safetensors", a__weight=np.array([3, 4], np.float32))
    other = write(tmp_path / "other.safetensors", a__weight=np.array([3, 5], np.float32))
    (found,) = run("diff", one, other, "--values", "--json").document["differences"]
    assert found["change"] == {"relative_rmse": 0.2, "max_difference": 1, "nonfinite": 0}
    done = run("diff", one, other, "--values")
    assert [line.split() for line in done.lines[3:5]] == [
        ["tensor", "type", "relative", "RMSE", "largest", "difference"],
        ["~", "a.weight", "F32", "20", "%", "1"],
    ]
    assert done.lines[-1] == "1 of 1 tensor differs: 1 in values"


def test_one_changed_value_is_found_across_conventions(
    run: Callable[..., Shown], gguf: Path, tmp_path: Path
) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    other = changed_copy(TINY, tmp_path / "other", name, at300=2.0)
    found = run("diff", other, gguf, "--values", "--json").document
    (difference,) = found["differences"]
    assert (difference["name"], difference["second_name"]) == (name, "blk.1.attn_k.weight")
    assert difference["change"]["max_difference"] == pytest.approx(2, abs=0.3)
    assert [each["changed"] for each in found["layers"]] == [0, 1, 0, 0]


def test_values_that_are_not_finite_are_counted(
    run: Callable[..., Shown], gguf: Path, tmp_path: Path
) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    other = changed_copy(TINY, tmp_path / "other", name, at0=float("nan"), at9=float("inf"))
    found = run("diff", gguf, other, "--values", "--json").document
    (difference,) = found["differences"]
    assert difference["name"] == "blk.0.ffn_up.weight"
    assert difference["change"] == {"relative_rmse": None, "max_difference": 0, "nonfinite": 2}
    done = run("diff", gguf, other, "--values")
    assert any(line.endswith("2 values NaN or infinite") for line in done.lines)


def test_tensors_of_one_side_and_other_shapes_are_shown_before_changes(
    run: Callable[..., Shown], tmp_path: Path
) -> None:
    ones = np.ones(4, np.float32)
    one = write(tmp_path / "one.safetensors", a=ones, b=ones, same=ones, shape=ones)
    other = write(tmp_path / "other.safetensors", b=ones * 2, same=ones, shape=ones[:2], z=ones)
    done = run("diff", one, other, "--values")
    assert [line.split() for line in done.lines[3:]] == [
        ["-", "a", "4", "F32"],
        ["+", "z", "4", "F32"],
        ["~", "shape", "4", "->", "2", "F32"],
        [],
        ["tensor", "type", "relative", "RMSE", "largest", "difference"],
        ["~", "b", "F32", "100", "%", "1"],
        [],
        *(line.split() for line in done.lines[-2:]),
    ]
    assert done.lines[-2:] == [
        "4 of 5 tensors differ: 1 only in A, 1 only in B, 1 in shape, 1 in values",
        "1 tensor has the same values",
    ]


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_values_that_float32_cannot_hold_are_compared_exactly(
    run: Callable[..., Shown], tmp_path: Path, dtype: type
) -> None:
    one = write(tmp_path / "one.safetensors", a=np.array([1 << 40, 3], dtype))
    other = write(tmp_path / "other.safetensors", a=np.array([(1 << 40) + 1, 3], dtype))
    same = run("diff", one, one, "--values")
    assert (same.code, same.lines[-1]) == (0, "1 tensor has the same values")
    assert run("diff", one, other, "--values").code == 1


def test_zero_and_minus_zero_are_the_same_value(run: Callable[..., Shown], tmp_path: Path) -> None:
    one = write(tmp_path / "one.safetensors", a=np.array([0.0, 1], np.float32))
    other = write(tmp_path / "other.safetensors", a=np.array([-0.0, 1], np.float32))
    assert run("diff", one, other, "--values").code == 0
    assert run("diff", one, other, "--hash").code == 1


def test_buffers_that_both_have_are_compared(run: Callable[..., Shown], tmp_path: Path) -> None:
    ones = np.ones(4, np.float32)
    one = write(tmp_path / "one.safetensors", bn__running_mean=ones)
    other = write(tmp_path / "other.safetensors", bn__running_mean=ones * 2)
    assert run("diff", one, other, "--values").code == 1


def test_a_weight_in_several_tensors_is_decoded(run: Callable[..., Shown], tmp_path: Path) -> None:
    quantized = small_checkpoints.awq(tmp_path)
    plain = tmp_path / "plain"
    run("convert", quantized, plain, "--names", "keep", "--dtype", "f32", "-q")
    done = run("diff", quantized, plain, "--values")
    assert (done.code, done.lines[-1]) == (
        0, "7 tensors have the same values; 7 tensors have another encoding",
    )  # fmt: skip


def test_patterns_choose_pairs_by_either_name(run: Callable[..., Shown], gguf: Path) -> None:
    for pattern in ("*layers.1.mlp*", "blk.1.ffn_*[!m].weight"):
        done = run("diff", TINY, gguf, "--values", "--include", pattern)
        assert done.lines[-1].startswith("3 tensors have the same values")


def test_quiet_has_the_exit_code_only(
    run: Callable[..., Shown], gguf: Path, tmp_path: Path
) -> None:
    assert run("diff", TINY, gguf, "--values", "-q") == Shown(0, [], "")
    name = "model.norm.weight"
    other = changed_copy(TINY, tmp_path / "other", name, at0=9.0)
    assert run("diff", other, gguf, "--values", "-q") == Shown(1, [], "")


def test_bytes_and_values_are_not_compared_at_once() -> None:
    paths = str(TINY), str(TINY)
    with pytest.raises(WeightctlError, match="cannot be used together"):
        app(["diff", *paths, "--values", "--hash"], standalone_mode=False)


def test_an_unknown_encoding_is_an_error_of_values_alone(
    run: Callable[..., Shown], tmp_path: Path
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_of({"a": ("X9", (2,), bytes(2))}))
    assert run("diff", path, path).code == 0
    with pytest.raises(WeightctlError, match="X9"):
        app(["diff", str(path), str(path), "--values"], standalone_mode=False)


FAMILIES = ("gemma2", "gpt2", "phi3", "mixtral")


@pytest.mark.parametrize("family", FAMILIES)
def test_changes_that_a_convention_makes_are_not_differences(
    run: Callable[..., Shown], tmp_path: Path, family: str
) -> None:
    from tiny import as_gguf, make_small, save_model

    model = make_small(family)
    directory, path = tmp_path / family, tmp_path / f"{family}.gguf"
    save_model(model, directory)
    save_model(as_gguf(model), path)
    for paths in ((directory, path), (path, directory)):
        done = run("diff", *paths, "--values")
        assert (done.code, done.notes) == (0, "")
        assert "tensors are paired by the tensor names of" in done.lines[2]


def test_ranks_are_compared_with_the_whole(
    run: Callable[..., Shown], gguf: Path, tmp_path: Path
) -> None:
    run("shard", TINY, tmp_path / "halves", "--tp", "2", "-q")
    assert run("diff", tmp_path / "halves", gguf, "--values").code == 0


def test_a_damaged_file_is_an_error_without_figures(
    gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(gguf.read_bytes()[:-1000])
    with pytest.raises(WeightctlError, match="ends 1000 bytes after the end of the file"):
        app(["diff", str(TINY), str(damaged), "--values"], standalone_mode=False)
    assert capsys.readouterr().out == ""


def test_models_of_different_families_have_no_pairs(
    run: Callable[..., Shown], tmp_path: Path
) -> None:
    tensors = {"encoder.weight": small_checkpoints.numbers("F32", 4, 4)}
    other = small_checkpoints.write(tmp_path, "other", tensors)
    done = run("diff", TINY, other, "--values")
    assert (done.code, done.lines[-1]) == (1, "31 of 31 tensors differ: 30 only in A, 1 only in B")
    assert "have no tensor name in common" in done.notes
