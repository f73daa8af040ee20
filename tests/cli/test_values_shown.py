"""`stat` and `show`: statistics and values of tensors, as users see them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

import small_checkpoints

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


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


def test_tensors_of_layers_are_one_row(weightctl: Run, model: Path) -> None:
    lines = weightctl("stat", model).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == [
        "layers.[0-10].experts.[0-1].up.weight",
        "norm.weight",
    ]
    assert "22 x 8x16" in lines[1]
    assert "1 NaN, 1 infinite, 25 % zeros" in lines[2]
    assert lines[-1] == "23 tensors, 2,820 values"


def test_flat_lists_each_tensor(weightctl: Run, model: Path) -> None:
    done = weightctl("stat", model, "--flat", "--include", "*.up.*")
    assert len(done.stdout.splitlines()) == 1 + 22 + 2


def test_integers_are_left_out_with_a_note(weightctl: Run, model: Path) -> None:
    assert "1 tensor has no floating-point values: not measured" in weightctl("stat", model).stderr
    assert weightctl("stat", model, "-q").stderr == ""


def test_a_weight_in_several_tensors_is_one_row(weightctl: Run, tmp_path: Path) -> None:
    small_checkpoints.awq(tmp_path)
    document = json.loads(weightctl("stat", "awq", "--json", cwd=tmp_path).stdout)
    listed = json.loads(weightctl("ls", "awq", "--json", cwd=tmp_path).stdout)
    weights = {each["name"] for each in document["tensors"]}
    assert weights.isdisjoint(
        {each["name"] for each in listed["tensors"] if "qweight" in each["name"]}
    )
    assert any("AWQ" in each["encoding"].upper() for each in document["tensors"])


def test_a_distribution_is_drawn_in_ascii_where_others_cannot_be(
    weightctl: Run, weightctl_process: Run, model: Path
) -> None:
    done = weightctl_process("stat", model, "--hist", PYTHONIOENCODING="ascii")
    assert "#" in done.stdout
    assert "█" in weightctl("stat", model, "--hist").stdout


def test_values_are_printed_as_numpy_prints_them(weightctl: Run, model: Path) -> None:
    done = weightctl("show", model, "norm.weight")
    assert done.stdout == "norm.weight  4  F32\n[ 1. nan  0. inf]\n"
    assert weightctl("show", model, "steps", "0", "-q").stdout == "3\n"


def test_values_that_are_not_finite_are_null_in_json(weightctl: Run, model: Path) -> None:
    document = json.loads(weightctl("show", model, "norm.weight", "--json").stdout)
    assert document["values"] == [1.0, None, 0.0, None]


def test_a_misspelled_tensor_gets_the_nearest_name(weightctl: Run, model: Path) -> None:
    done = weightctl("show", model, "norm.weigth")
    assert done.returncode == 2
    assert "there is no tensor `norm.weigth`" in done.stderr
    assert "did you mean `norm.weight`?" in done.stderr


def test_a_file_for_numpy_is_written_and_not_replaced(
    weightctl: Run, model: Path, tmp_path: Path
) -> None:
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


def test_the_stored_tensors_of_a_weight_are_shown_as_they_are(
    weightctl: Run, tmp_path: Path
) -> None:
    small_checkpoints.awq(tmp_path)
    listed = json.loads(weightctl("ls", "awq", "--json", cwd=tmp_path).stdout)["tensors"]
    name = next(each["name"] for each in listed if each["name"].endswith(".qweight"))
    document = json.loads(weightctl("show", "awq", name, "--json", cwd=tmp_path).stdout)
    assert document["encoding"] == "I32"
    whole = name.removesuffix(".qweight") + ".weight"
    document = json.loads(weightctl("show", "awq", whole, "--json", cwd=tmp_path).stdout)
    assert isinstance(document["values"][0][0], float)
