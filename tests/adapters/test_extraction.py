"""Adapters that are computed from two models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

import weightctl
from lazy import torch, transformers
from lora_models import adapt, load_with_peft, make_llama
from weightctl.errors import ConversionError
from weightctl.write.extract import extract

if TYPE_CHECKING:
    from pathlib import Path


def test_the_adapter_of_a_merged_model_restores_it_in_peft(tmp_path: Path) -> None:
    targets = ["q_proj", "down_proj", "embed_tokens"]
    model = adapt(tmp_path, make_llama(), r=4, lora_alpha=8, target_modules=targets)
    made = extract(model.base, model.merged, tmp_path / "out", rank=4)
    assert made.captured > 1 - 1e-9
    assert len(made.tensors) == 5
    restored = load_with_peft(model.base, tmp_path / "out")
    wanted = transformers.LlamaForCausalLM.from_pretrained(model.merged)
    tokens = torch.tensor([[3, 17, 42, 9]])
    with torch.no_grad():
        assert (restored(tokens).logits - wanted(tokens).logits).abs().max() < 1e-4


def test_the_captured_energy_is_that_of_the_exact_decomposition(tmp_path: Path) -> None:
    random = np.random.default_rng(31)
    matrix = random.standard_normal((96, 160), np.float32) / np.arange(1, 161, dtype=np.float32)
    norm = np.ones(160, np.float32)
    for name, factor in (("base", 0), ("tuned", 1)):
        tensors = {"layer.weight": matrix * factor, "norm.weight": norm + factor, "same.bias": norm}
        weightctl.convert(tensors, tmp_path / name)
    made = extract(tmp_path / "base", tmp_path / "tuned", tmp_path / "out", rank=8, dtype="bf16")
    squares = np.linalg.svd(matrix, compute_uv=False).astype(np.float64) ** 2
    assert made.captured == pytest.approx(squares[:8].sum() / squares.sum(), abs=1e-3)
    assert made.left_out == ["norm.weight"]
    assert made.unchanged == 1
    assert "not in the adapter: 1 tensor that differ" in made.notes[0]
    settings = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert settings["target_modules"] == ["layer"]
    weightctl.convert(tmp_path / "base", tmp_path / "merged", adapters=[tmp_path / "out"])
    merged = np.asarray(weightctl.open_weights(tmp_path / "merged")["layer.weight"])
    assert np.square(merged - matrix).sum() / squares.sum() == pytest.approx(
        1 - made.captured, abs=1e-3
    )


def test_models_that_do_not_match_are_refused(tmp_path: Path) -> None:
    one = np.ones((4, 4), np.float32)
    weightctl.convert({"a.weight": one, "b.weight": one}, tmp_path / "base")
    weightctl.convert({"a.weight": one}, tmp_path / "less")
    weightctl.convert({"a.weight": one, "b.weight": one[:2]}, tmp_path / "other")
    for tuned, message in (
        ("base", "no matrix differs"),
        ("less", "lacks 1 tensor of the base: b.weight"),
        ("other", "`b.weight` has shape .4, 4. in the base, but .2, 4."),
    ):
        with pytest.raises(ConversionError, match=message):
            extract(tmp_path / "base", tmp_path / tuned, tmp_path / "out")
    with pytest.raises(ConversionError, match="at least 1"):
        extract(tmp_path / "base", tmp_path / "less", tmp_path / "out", rank=0)
    assert not (tmp_path / "out").exists()
