"""The page that `stat --html` writes: heat maps, and a table that can be sorted."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import small_checkpoints
from commands import run_command as weightctl
from lazy import torch
from reports import of_class, parsed, text_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from xml.etree.ElementTree import Element

    from conftest import Completed

    Run = Callable[..., Completed]


def make(path: Path, **more: np.ndarray) -> Path:
    random = np.random.default_rng(1)
    tensors = {
        f"model.layers.{layer}.mlp.up.weight": random.standard_normal((8, 16), np.float32)
        for layer in range(4)
    }
    tensors["model.layers.2.mlp.up.weight"] *= 5
    tensors["model.norm.weight"] = np.array([1, np.nan, 0, np.inf], np.float32)
    save_file(tensors | more, path / "model.safetensors")
    return path / "model.safetensors"


def page(model: Path, *options: str) -> Element:
    target = model.with_suffix(".html")
    done = weightctl("stat", model, "--html", target, *options)
    assert done.returncode == 0, done.stderr
    return parsed(target.read_text())


def cells(picture: Element) -> dict[str, str]:
    return {text_of(rect): rect.get("class", "") for rect in picture.iter("rect") if text_of(rect)}


def test_a_page_has_a_row_for_each_tensor(tmp_path: Path) -> None:
    root = page(make(tmp_path))
    names = [code.text for body in root.iter("tbody") for code in body.iter("code")]
    assert names == [*(f"model.layers.{n}.mlp.up.weight" for n in range(4)), "model.norm.weight"]
    assert len(of_class(root, "spark")) == 5
    (bad,) = [row for row in root.iter("tr") if row.get("class") == "bad"]
    assert text_of(bad).startswith("model.norm.weight4F32")
    assert text_of(bad).endswith("25 %2")


def test_a_heat_map_shows_the_layer_that_differs(tmp_path: Path) -> None:
    root = page(make(tmp_path))
    titled = {svg.get("aria-label", ""): svg for svg in root.iter("svg")}
    (title,) = [each for each in titled if each.startswith("Standard deviation")]
    found = {text.split("\n")[0]: color for text, color in cells(titled[title]).items()}
    assert found["model.layers.0.mlp.up.weight"] == "r2"
    assert found["model.layers.2.mlp.up.weight"] == "r5"
    assert "bad" in found["model.norm.weight"]
    assert "mlp.up" in [text_of(label) for label in titled[title].iter("text")]


def test_of_the_experts_of_a_layer_the_one_that_differs_most_is_shown(tmp_path: Path) -> None:
    noise = np.random.default_rng(2).standard_normal((8, 16), np.float32)
    up = "model.layers.{}.experts.{}.up.weight"
    more = {up.format(layer, expert): noise for layer in range(4) for expert in range(3)}
    more[up.format(1, 0)] = noise * np.float32(0.3)
    more[up.format(1, 1)] = noise * np.float32(2)
    more[up.format(2, 0)] = noise * np.float32(0.6)
    more[up.format(2, 1)] = noise * np.float32(2)
    (picture,) = [
        svg
        for svg in page(make(tmp_path, **more)).iter("svg")
        if svg.get("aria-label", "").startswith("Standard deviation")
    ]
    shown = {text.split(" ")[0] for text in cells(picture) if "experts" in text}
    assert shown >= {up.format(1, 0), up.format(2, 1)}


def test_ranks_are_on_the_page_if_they_were_estimated(tmp_path: Path) -> None:
    model = make(tmp_path, thin=np.ones((6, 4), np.float32))
    assert "Effective rank" not in text_of(page(model))
    root = page(model, "--rank", "--force")
    assert "Effective rank" in text_of(root)
    row = next(row for row in root.iter("tr") if text_of(row).startswith("thin"))
    assert text_of(row[-1]) == "1"


def test_a_browser_runs_only_the_script_of_the_page(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    root = page(make(tmp_path, **{hostile: np.ones(4, np.float32)}))
    (script,) = root.iter("script")
    digest = b64encode(hashlib.sha256((script.text or "").encode()).digest()).decode()
    (policy,) = [meta.get("content", "") for meta in root.iter("meta") if meta.get("http-equiv")]
    assert policy.endswith(f"script-src 'sha256-{digest}'")
    assert hostile in [code.text for code in root.iter("code")]


def test_a_long_table_can_be_searched(tmp_path: Path) -> None:
    arrays = {f"layers.{layer}.weight": np.ones(4, np.float32) for layer in range(4, 20)}
    many = page(make(tmp_path, **arrays))
    (field,) = many.iter("input")
    assert (field.get("type"), field.get("placeholder")) == ("search", "search 21 rows")
    del arrays["layers.19.weight"]
    (tmp_path / "few").mkdir()
    assert not [*page(make(tmp_path / "few", **arrays), "--force").iter("input")]


def test_a_page_that_exists_is_kept(tmp_path: Path) -> None:
    model = make(tmp_path)
    (tmp_path / "model.html").write_text("mine")
    done = weightctl("stat", model, "--html", tmp_path / "model.html")
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert (tmp_path / "model.html").read_text() == "mine"


def test_a_checkpoint_without_real_values_has_a_page(tmp_path: Path) -> None:
    path = tmp_path / "steps.safetensors"
    save_file({"steps": np.array([1])}, path)
    assert "1 not measured" in text_of(page(path))


# `stat` and `show`: statistics and values of tensors, as users see them.


@pytest.fixture
def model(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    tensors = {
        f"layers.{layer}.experts.{expert}.up.weight": random.standard_normal((8, 16), np.float32)
        for layer in range(11)
        for expert in range(2)
    }
    tensors["norm.weight"] = np.array([1, np.nan, 0, np.inf], np.float32)
    tensors["steps"] = np.array([3])
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    return path


def test_tensors_of_layers_are_one_row(model: Path) -> None:
    lines = weightctl("stat", model).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == [
        "layers.[0-10].experts.[0-1].up.weight",
        "norm.weight",
    ]
    assert "22 x 8x16" in lines[1]
    assert "1 NaN, 1 infinite, 25 % zeros" in lines[2]
    assert lines[-1] == "23 tensors, 2,820 values"


def test_the_layers_with_values_that_are_not_finite_are_named(model: Path) -> None:
    tensors = load_file(model)
    for layer, value in ((3, np.nan), (7, np.inf)):
        tensors[f"layers.{layer}.experts.1.up.weight"][2, 5] = value
    save_file(tensors, model)
    (line,) = [line for line in weightctl("stat", model).stderr.splitlines() if "infinite" in line]
    assert line == (
        "note: values that are NaN or infinite are in `layers.3.experts.1.up.weight`, "
        "`layers.7.experts.1.up.weight`"
    )


def test_a_value_far_from_the_others_is_named(model: Path) -> None:
    tensors = load_file(model)
    tensors["layers.9.experts.0.up.weight"][1, 2] = -4000
    save_file(tensors, model)
    (line,) = [
        line
        for line in weightctl("stat", model).stderr.splitlines()
        if "-4e" in line or "4e+03" in line
    ]
    assert line.startswith(
        "note: the largest magnitude in `layers.9.experts.0.up.weight`, 4e+03, is "
    )


def test_flat_lists_each_tensor(model: Path) -> None:
    done = weightctl("stat", model, "--flat", "--include", "*.up.*")
    assert len(done.stdout.splitlines()) == 1 + 22 + 2


def test_integers_are_left_out_with_a_note(model: Path) -> None:
    assert "1 tensor has no floating-point values: not measured" in weightctl("stat", model).stderr
    assert weightctl("stat", model, "-q").stderr == ""


def test_a_weight_in_several_tensors_is_one_row(tmp_path: Path) -> None:
    small_checkpoints.awq(tmp_path)
    document = json.loads(weightctl("stat", "awq", "--json", cwd=tmp_path).stdout)
    listed = json.loads(weightctl("ls", "awq", "--json", cwd=tmp_path).stdout)
    weights = {each["name"] for each in document["tensors"]}
    assert weights.isdisjoint(
        {each["name"] for each in listed["tensors"] if "qweight" in each["name"]}
    )
    assert any("AWQ" in each["encoding"].upper() for each in document["tensors"])


def test_a_distribution_is_drawn_in_ascii_where_others_cannot_be(
    weightctl_process: Run, model: Path
) -> None:
    done = weightctl_process("stat", model, "--hist", PYTHONIOENCODING="ascii")
    assert "#" in done.stdout
    assert "█" in weightctl("stat", model, "--hist").stdout


def test_values_are_printed_as_numpy_prints_them(model: Path) -> None:
    done = weightctl("show", model, "norm.weight")
    assert done.stdout == "norm.weight  4  F32\n[ 1. nan  0. inf]\n"
    assert weightctl("show", model, "steps", "0", "-q").stdout == "3\n"


def test_values_that_are_not_finite_are_null_in_json(model: Path) -> None:
    document = json.loads(weightctl("show", model, "norm.weight", "--json").stdout)
    assert document["values"] == [1.0, None, 0.0, None]


def test_complex_values_are_pairs_in_json(tmp_path: Path) -> None:
    path = tmp_path / "waves.pt"
    torch.save({"waves": torch.tensor([[1 + 2j, 3j, 0], [-1j, 4, 5]])}, path)
    document = json.loads(weightctl("show", path, "waves", "--json").stdout)
    assert document["values"] == [[[1, 2], [0, 3], [0, 0]], [[0, -1], [4, 0], [5, 0]]]


def test_a_misspelled_tensor_gets_the_nearest_name(model: Path) -> None:
    done = weightctl("show", model, "norm.weigth")
    assert done.returncode == 2
    assert "there is no tensor `norm.weigth`" in done.stderr
    assert "did you mean `norm.weight`?" in done.stderr


def test_a_file_for_numpy_is_written_and_not_replaced(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "row.npy"
    name = "layers.3.experts.1.up.weight"
    assert weightctl("show", model, name, "2", "--npy", out).stdout.endswith("16 float32\n")
    whole = json.loads(weightctl("show", model, name, "--json").stdout)["values"]
    np.testing.assert_array_equal(np.load(out), np.float32(whole)[2])
    before = out.read_bytes()
    refused = weightctl("show", model, name, "--npy", out)
    assert refused.returncode == 2
    assert f"{out} exists" in refused.stderr
    assert out.read_bytes() == before
    assert weightctl("show", model, name, "--npy", out, "-f").returncode == 0
    refused = weightctl("show", model, name, "--npy", model, "-f")
    assert "is the input itself" in refused.stderr


def test_the_stored_tensors_of_a_weight_are_shown_as_they_are(tmp_path: Path) -> None:
    small_checkpoints.awq(tmp_path)
    listed = json.loads(weightctl("ls", "awq", "--json", cwd=tmp_path).stdout)["tensors"]
    name = next(each["name"] for each in listed if each["name"].endswith(".qweight"))
    document = json.loads(weightctl("show", "awq", name, "--json", cwd=tmp_path).stdout)
    assert document["encoding"] == "I32"
    whole = name.removesuffix(".qweight") + ".weight"
    document = json.loads(weightctl("show", "awq", whole, "--json", cwd=tmp_path).stdout)
    assert isinstance(document["values"][0][0], float)
