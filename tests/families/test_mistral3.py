"""The text models of Mistral's multimodal checkpoints, and the attention temperature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import (
    Ministral3Config,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    Mistral4Config,
    MistralConfig,
)

from each import each
from runs import executed, run
from weightctl import WeightData, convert, open_weights
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES, recognize
from weightctl.families.configs import from_hugging_face
from weightctl.nn.models import build_network
from weightctl.nn.positions import Temperature
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

TOKENS = list(range(40))
SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 512}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 8,
        "llama_4_scaling_beta": 0.5}  # fmt: skip
LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 16,
          "qk_rope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
          "moe_intermediate_size": 32}  # fmt: skip
TEXTS: dict[str, Any] = {
    "mistral": MistralConfig(**SIZES, num_key_value_heads=2),
    "ministral3": Ministral3Config(
        **SIZES, num_key_value_heads=2, head_dim=16, rope_parameters=dict(YARN)
    ),
    "mistral4": Mistral4Config(**SIZES, **LATENT, rope_parameters=dict(YARN)),
}
VISION = {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 32, "head_dim": 16,
          "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32,
          "patch_size": 16}  # fmt: skip


def save_multimodal(kind: str, into: Path) -> NDArray[Any]:
    """Save a multimodal model with a text model of a type, and return its logits."""
    torch.manual_seed(0)
    config = Mistral3Config(
        text_config=TEXTS[kind], vision_config=VISION, tie_word_embeddings=False
    )
    model = Mistral3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    model.save_pretrained(into)
    return np.asarray(expected)


@each("kind", TEXTS)
def test_the_text_model_of_a_multimodal_checkpoint_is_run(kind: str, tmp_path: Path) -> None:
    expected = save_multimodal(kind, tmp_path)
    model = recognize(open_weights(tmp_path))
    network = build_network(model)
    (found,) = executed(network.graph(), np.array([TOKENS]), weights=model.weights)
    assert np.abs(found[0] - expected).max() < 1e-3
    assert model.family.name == ("mistral4" if kind == "mistral4" else "mistral3")


def test_what_a_multimodal_checkpoint_sees_with_is_left_out(tmp_path: Path) -> None:
    save_multimodal("ministral3", tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "text.gguf")
    names = header_of(open_weights(tmp_path / "text.gguf")).tensors
    assert "blk.1.attn_q.weight" in names
    assert not [name for name in names if "vision" in name or "projector" in name]


def test_gates_of_experts_that_gguf_has_with_what_they_gate_are_read(tmp_path: Path) -> None:
    # As llama.cpp's converter writes them.
    save_multimodal("mistral4", tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "apart.gguf")
    apart = open_weights(tmp_path / "apart.gguf")
    arrays = {name: np.array(apart[name].data().to_numpy()) for name in header_of(apart).tensors}
    for layer in range(2):
        gate, up = (f"blk.{layer}.ffn_{part}_exps.weight" for part in ("gate", "up"))
        both = np.concatenate([arrays.pop(gate), arrays.pop(up)], axis=1)
        arrays[f"blk.{layer}.ffn_gate_up_exps.weight"] = both
    data = {name: WeightData.from_numpy(array, name) for name, array in arrays.items()}
    joined = as_checkpoint(data, header_of(apart).metadata)
    outputs = [
        executed(build_network(found).graph(), np.array([TOKENS]), weights=found.weights)[0]
        for found in (recognize(apart), recognize(joined))
    ]
    assert np.array_equal(*outputs)


def test_queries_far_into_a_text_are_multiplied_by_more() -> None:
    queries = np.ones((1, 2, 6, 4), np.float32)
    found = run(Temperature(0.5, 2), queries)
    expected = 1 + 0.5 * np.log(1 + np.floor(np.arange(6) / 2))
    assert np.allclose(found[0, 1, :, 3], expected)


def test_the_offset_of_a_temperature_is_added_to_positions() -> None:
    queries = np.ones((1, 2, 6, 4), np.float32)
    found = run(Temperature(0.5, 2, offset=1), queries)
    expected = 1 + 0.5 * np.log(1 + np.floor((np.arange(6) + 1) / 2))
    assert np.allclose(found[0, 1, :, 3], expected)


def test_a_temperature_without_yarn_is_refused() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1}
    document = {"model_type": "ministral3", "rope_parameters": rope}
    with pytest.raises(ArchitectureError, match="`llama_4_scaling_beta` is only supported with"):
        from_hugging_face(FAMILIES["mistral3"].load(), document, "here")
