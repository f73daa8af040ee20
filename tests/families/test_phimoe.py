"""Phi-3.5-MoE: LongRoPE beyond the original context, and what llama.cpp does with such a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lazy import torch, transformers
from runs import executed
from small_models import logits, tokens_below
from weightctl import open_weights
from weightctl.families import recognize
from weightctl.nn.models import build_network
from weightctl.translate.plans import plan_of

if TYPE_CHECKING:
    from pathlib import Path

ORIGINAL = 16
SHORT, LONG = [1.0, 1.1, 1.2, 1.3], [2.0, 3.0, 4.0, 5.0]


def make_model(short: list[float]) -> Any:
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": short, "long_factor": LONG,
        "short_mscale": 1.2, "long_mscale": 1.2, "original_max_position_embeddings": ORIGINAL,
    }  # fmt: skip
    config = transformers.PhimoeConfig(
        vocab_size=96, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=3,
        max_position_embeddings=64, attention_bias=True, lm_head_bias=True,
        rope_parameters=rope, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.PhimoeForCausalLM._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 1))
    return model


@pytest.mark.filterwarnings("ignore:.*rope_parameters")
def test_texts_beyond_the_original_context_have_the_long_factors(tmp_path: Path) -> None:
    model = make_model(SHORT)
    model.save_pretrained(tmp_path)
    found = recognize(open_weights(tmp_path))
    network = build_network(found)
    tokens = tokens_below(96, 1, 2 * ORIGINAL)
    (output,) = executed(network.graph(), tokens, weights=found.weights)
    # transformers has the short ones for any text: a model in which these are the long ones.
    assert np.abs(output - logits(make_model(LONG), tokens)).max() < 1e-3
    assert np.abs(output - logits(model, tokens)).max() > 0.1
    (output,) = executed(network.graph(), tokens[:, :ORIGINAL], weights=found.weights)
    assert np.abs(output - logits(model, tokens[:, :ORIGINAL])).max() < 1e-3


def test_a_note_says_what_llama_cpp_computes_otherwise(tmp_path: Path) -> None:
    make_model(SHORT).save_pretrained(tmp_path)
    notes = plan_of(open_weights(tmp_path), "gguf").notes
    expected = (
        "results of llama.cpp differ from transformers: it has RMS norms, and one softmax for the "
        "shares of both experts"
    )
    assert expected in notes
