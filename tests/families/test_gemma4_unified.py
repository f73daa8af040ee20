"""Gemma 4 without encoders (`gemma4_unified`): GGUF has it as any other Gemma 4."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import (
    Gemma4ForCausalLM,
    Gemma4UnifiedConfig,
    Gemma4UnifiedForCausalLM,
    Gemma4UnifiedForConditionalGeneration,
    Gemma4UnifiedTextConfig,
)

from family_cases import run_transformers
from runs import executed
from weightctl import convert, open_weights
from weightctl.families import recognize
from weightctl.nn.models import build_network

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = [3, 90, 17, 95, 4, 61, 88, 5, 20, 7]
SIZES: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "global_head_dim": 64,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 4, "max_position_embeddings": 64,
}  # fmt: skip


def test_the_text_model_is_computed_as_transformers_does_and_comes_back_from_gguf(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    config = Gemma4UnifiedTextConfig(**SIZES)
    model = Gemma4UnifiedForCausalLM._from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(tmp_path / "model")
    expected = run_transformers(model, TOKENS)
    convert(tmp_path / "model", tmp_path / "model.gguf", to="gguf")
    for path in (tmp_path / "model", tmp_path / "model.gguf"):
        found = recognize(open_weights(path))
        network = build_network(found)
        (ours,) = executed(network.graph(), np.array([TOKENS]), weights=found.weights)
        assert np.abs(ours[0] - expected).max() < 1e-4
    convert(tmp_path / "model.gguf", tmp_path / "back")
    back: Any = Gemma4ForCausalLM.from_pretrained(tmp_path / "back", attn_implementation="eager")
    assert np.abs(run_transformers(back.eval(), TOKENS) - expected).max() < 1e-4


def test_the_text_model_of_a_multimodal_checkpoint_is_found(tmp_path: Path) -> None:
    model: Any = Gemma4UnifiedForConditionalGeneration(Gemma4UnifiedConfig(text_config=SIZES))
    model.save_pretrained(tmp_path)
    stated = json.loads((tmp_path / "config.json").read_text())
    found = recognize(open_weights(tmp_path))
    found.check()
    assert (stated["model_type"], found.family.name) == ("gemma4_unified", "gemma4")
    assert found.fields["layer_input"] == 0
