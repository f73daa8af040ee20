"""NaN and infinity, which blocks cannot hold: refused, or replaced with 0 and reported."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from arrays import stored
from llama_cpp import ggml_quantize
from weightctl import open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

DAMAGED = np.random.default_rng(8).standard_normal((4, 256), np.float32)
DAMAGED[0, 3], DAMAGED[2, 0], DAMAGED[3, 255] = np.nan, np.inf, -np.inf
REPAIRED = np.where(np.isfinite(DAMAGED), DAMAGED, np.float32(0))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    return stored(tmp_path / "in.safetensors", a_weight=DAMAGED, b_weight=np.abs(REPAIRED))


def test_the_refusal_says_how_to_go_on(weightctl: Run, damaged: Path, tmp_path: Path) -> None:
    for choice in ([], ["--nonfinite", "error"]):
        done = weightctl("convert", damaged, tmp_path / "out.gguf", "--quant", "Q8_0", *choice)
        assert done.returncode == 2
        assert "`a_weight` has nan at element 3" in done.stderr
        assert "to store 0 instead, use --nonfinite zero" in done.stderr


@pytest.mark.parametrize("encoding", ["Q8_0", "Q4_K"])
def test_zero_takes_their_place_and_is_reported(
    weightctl: Run, damaged: Path, tmp_path: Path, encoding: str
) -> None:
    out, report = tmp_path / "out.gguf", tmp_path / "report.json"
    done = weightctl("convert", damaged, out, "--quant", encoding, "--nonfinite", "zero", "--quiet",
                     "--report", report)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "note: `a_weight`: 3 values that are not finite became 0\n" in done.stderr
    made = open_weights(out)["a_weight"].data().view()
    assert made.tobytes() == ggml_quantize(encoding, REPAIRED, None).tobytes()
    entries = json.loads(report.read_text())["tensors"]
    assert {entry["name"]: entry["nonfinite"] for entry in entries} == {
        "a_weight": 3,
        "b_weight": 0,
    }


def test_several_tensors_are_reported_together(weightctl: Run, tmp_path: Path) -> None:
    one = np.where(np.isfinite(DAMAGED), DAMAGED, np.float32(1))
    one[1, 1] = np.nan
    source = stored(tmp_path / "in.safetensors", a_weight=DAMAGED, b_weight=one)
    done = weightctl("convert", source, tmp_path / "out.gguf", "--quant", "Q8_0", "--nonfinite",
                     "zero")  # fmt: skip
    assert (
        "2 tensors: 4 values that are not finite became 0, 3 of them in `a_weight`" in done.stderr
    )


def test_a_float_type_keeps_them_and_the_option_says_so(
    weightctl: Run, damaged: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.safetensors"
    done = weightctl("convert", damaged, out, "--dtype", "f16", "--nonfinite", "zero")
    assert "no tensor becomes one: NaN stays NaN" in done.stderr
    found = open_weights(out).a_weight.data().to_numpy()
    assert np.isnan(found[0, 3])
    assert np.isinf(found[2, 0])
