"""Llama 4: chunks of positions, the attention temperature, and what llama.cpp has no keys for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import Llama4ForCausalLM, Llama4TextConfig

from each import each
from runs import executed
from weightctl import open_weights
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES, recognize
from weightctl.families.configs import from_hugging_face
from weightctl.families.written import to_gguf
from weightctl.nn.models import build_network

if TYPE_CHECKING:
    from pathlib import Path

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 32, "intermediate_size_mlp": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_local_experts": 4, "max_position_embeddings": 64,
}  # fmt: skip


def to_metadata(**changes: Any) -> Any:
    document = {"model_type": "llama4_text", **SIZES, **changes}
    family = FAMILIES["llama4"].load()
    return to_gguf(family, from_hugging_face(family, document, "here").fields)


def test_positions_see_their_own_chunk_and_queries_far_into_a_text_are_multiplied(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    config = Llama4TextConfig(
        **SIZES, attention_chunk_size=8, floor_scale=4, attn_scale=0.5, moe_layers=[1, 2]
    )
    model = Llama4ForCausalLM._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 1))
    model.save_pretrained(tmp_path)
    tokens = np.arange(40).reshape(1, 40) % 64
    with torch.inference_mode():
        expected = model(torch.tensor(tokens)).logits.numpy()
    found = recognize(open_weights(tmp_path))
    found.check()
    (output,) = executed(build_network(found).graph(), tokens, weights=found.weights)
    assert np.abs(output - expected).max() < 1e-3 * np.abs(expected).max()


@each(
    "changes, message",
    [
        ({"attention_chunk_size": 32}, "`attention_chunk` is `32`, but llama.cpp would read"),
        ({"floor_scale": 4}, "`temperature_length` is `4`"),
        ({"attn_temperature_tuning": False}, "`has_temperature` is `False`"),
        ({"use_qk_norm": False}, "`has_qk_norm` is `False`"),
        ({"num_local_experts": 128}, "`has_qk_norm` is `True`"),
        (
            {"moe_layers": [1]},
            "layers with experts are not those that `interleave_moe_layer_step` selects",
        ),
        ({"no_rope_layers": [1, 1, 0, 1]}, "layers without RoPE and chunked attention are not"),
        ({"num_hidden_layers": 3}, "fewer than 4 layers"),
        ({"attention_bias": True}, "its attention has biases"),
    ],
)
def test_what_llama_cpp_would_take_for_another_model_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArchitectureError, match=message):
        to_metadata(**changes)


def test_a_model_of_128_experts_has_no_norms_of_queries_and_keys_to_llama_cpp() -> None:
    assert to_metadata(num_local_experts=128, use_qk_norm=False)["llama4.expert_count"].content


def test_the_text_model_of_a_multimodal_config_is_read() -> None:
    document = {"model_type": "llama4", "text_config": {**SIZES, "attn_temperature_tuning": 4}}
    fields = from_hugging_face(FAMILIES["llama4"].load(), document, "here").fields
    assert (fields["experts"], fields["has_temperature"]) == (4, True)
