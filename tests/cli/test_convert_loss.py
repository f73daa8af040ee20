"""The loss of precision that a conversion reports."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from arrays import stored
from weightctl import DType, open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def test_numbers_too_large_for_their_type_are_counted(weightctl: Run, tmp_path: Path) -> None:
    large = np.array([[1.0, 65519.0, 65520.0, -1e9, np.inf]], np.float32)
    source = stored(tmp_path / "in.safetensors", a=large, b=np.ones((2, 2), np.float32))
    done = weightctl("convert", source, tmp_path / "out.safetensors", "--dtype", "f16")
    assert done.returncode == 0
    assert "2 values in `a` were too large for their new type; a type with" in done.stderr
    found = open_weights(tmp_path / "out.safetensors").a.data().to_numpy()
    assert found.tolist() == [[1.0, 65504.0, np.inf, -np.inf, np.inf]]


def test_nan_in_a_matrix_is_an_error_that_names_the_element(weightctl: Run, tmp_path: Path) -> None:
    damaged = np.ones((600, 1024), np.float32)
    damaged[500, 7] = np.nan
    source = stored(tmp_path / "in.safetensors", weight=damaged)
    done = weightctl("convert", source, tmp_path / "out.gguf", "--quant", "Q8_0")
    assert done.returncode == 2
    assert f"`weight` has nan at element {500 * 1024 + 7}" in done.stderr
    assert os.listdir(tmp_path) == ["in.safetensors"]


def test_a_second_loss_needs_to_be_allowed(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    once, twice = tmp_path / "once.gguf", tmp_path / "twice.gguf"
    weightctl("convert", tiny_llama, once, "--quant", "q4_k")
    refused = weightctl("convert", once, twice, "--quant", "q8_0")
    assert refused.returncode == 2
    assert "--allow-requantize" in refused.stderr
    assert (
        weightctl("convert", once, twice, "--quant", "q8_0", "--allow-requantize").returncode == 0
    )


def test_the_summary_tells_what_rounding_cost_worst_first(weightctl: Run, tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).standard_normal((8, 256), np.float32)
    source = stored(
        tmp_path / "in.safetensors",
        exact=np.ones((8, 256), np.float32),
        small=numbers * 1e-8,
        large=numbers * 1e5,
        usual=numbers,
    )
    done = weightctl("convert", source, tmp_path / "out.safetensors", "--dtype", "f16")
    table = done.stdout.partition("worst first:\n")[2].splitlines()
    assert re.fullmatch(r"  large  F32 -> F16  0\.0\d+ %; \d\d\.\d\d % too large", table[0])
    assert re.fullmatch(r"  small  F32 -> F16  \d+\.\d\d %; \d\d\.\d\d % became zero", table[1])
    assert re.fullmatch(r"  usual  F32 -> F16  0\.0\d+ %", table[2])
    assert not table[3].startswith("  ")


def test_all_but_the_worst_are_folded(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    done = weightctl("convert", tiny_llama, tmp_path / "out.gguf", "--quant", "q4_k")
    assert re.search(r"^  18 more  6\.\d\d % to 7\.\d\d %$", done.stdout, re.MULTILINE)


def test_json_has_the_relative_rmse_of_each_tensor(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    exact, out = tmp_path / "exact.gguf", tmp_path / "out.gguf"
    assert weightctl("convert", tiny_llama, exact, "--dtype", "f32").returncode == 0
    done = weightctl("convert", tiny_llama, out, "--quant", "q8_0", "--json", "--report", "r.json",
                     cwd=tmp_path)  # fmt: skip
    document = json.loads(done.stdout)
    assert json.loads((tmp_path / "r.json").read_text()) == document
    # In the same order of rows, since what is rounded is what the steps on the way have made.
    before, after = open_weights(exact), open_weights(out)
    for tensor in document["tensors"]:
        if tensor["to"] == "F32":
            assert not tensor["relative_rmse"]
            continue
        x, y = (
            weights[tensor["name"]].data().astype(DType.float32).to_numpy().astype(np.float64)
            for weights in (before, after)
        )
        expected = np.sqrt(((x - y) ** 2).sum() / (x**2).sum())
        assert tensor["relative_rmse"] == pytest.approx(expected, rel=1e-4)
