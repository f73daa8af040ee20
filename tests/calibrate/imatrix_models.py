"""Models that importance matrices of llama-imatrix in fixtures/imatrix were measured on."""

from __future__ import annotations

import json
from shutil import copyfile
from typing import TYPE_CHECKING, Any

import numpy as np

from conftest import ROOT
from weightctl import convert
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

GOLDENS = ROOT / "fixtures" / "imatrix"
TINY = ROOT / "fixtures" / "tiny-llama"
TEXT = TINY / "held-out.txt"
CONTEXT, CHUNKS = 128, 8
HIDDEN, INNER, EXPERTS, USED, LAYERS = 256, 256, 8, 2, 2
HEADS, KV_HEADS, HEAD = 4, 2, 64


def tiny_llama(folder: Path) -> Path:
    """Write tiny-llama as a GGUF file in F32."""
    made = folder / "tiny-llama-f32.gguf"
    convert(TINY, made, dtype="f32")
    return made


_COMMON = {
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
_MIXTURE = _COMMON | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
    "max_position_embeddings": 1024, "hidden_size": HIDDEN, "intermediate_size": 512,
    "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "num_experts": EXPERTS,
    "num_experts_per_tok": USED, "moe_intermediate_size": INNER, "norm_topk_prob": True,
}  # fmt: skip
_LATENT = _COMMON | {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
    "max_position_embeddings": 512, "hidden_size": 64, "intermediate_size": 96,
    "moe_intermediate_size": 32, "num_key_value_heads": HEADS, "q_lora_rank": 16,
    "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20,
    "first_k_dense_replace": LAYERS - 1, "n_routed_experts": 2, "num_experts_per_tok": 1,
    "n_shared_experts": 1,
}  # fmt: skip


def mixture_directory(folder: Path) -> Path:
    """Write a mixture of experts with random weights, and the tokenizer of tiny-llama."""
    return _write(folder / "mixture", _MIXTURE, _weights)


def latent(folder: Path) -> Path:
    """Write a small model with latent attention and random weights as a GGUF file in F32."""
    made = folder / "latent-f32.gguf"
    convert(_write(folder / "latent", _LATENT, _latent_weights), made, dtype="f32")
    return made


def _write(
    made: Path, config: dict[str, Any], draw: Callable[[int], dict[str, NDArray[np.float32]]]
) -> Path:
    made.mkdir()
    tiny = json.loads((TINY / "config.json").read_text())
    tokens = {key: tiny[key] for key in ("vocab_size", "bos_token_id", "eos_token_id")}
    (made / "config.json").write_text(json.dumps(config | tokens))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copyfile(TINY / name, made / name)
    save(draw(tiny["vocab_size"]), made / "model.safetensors")
    return made


def mixture(folder: Path) -> Path:
    """Write the mixture of experts as a GGUF file in F32."""
    made = folder / "mixture-f32.gguf"
    convert(mixture_directory(folder), made, dtype="f32")
    return made


def _drawing(seed: int) -> Callable[..., NDArray[np.float32]]:
    raw = np.random.Generator(np.random.PCG64(seed))

    def draw(*shape: int, scale: float = 1.0) -> NDArray[np.float32]:
        # Uniform numbers are a multiple of the random bits, so that they do not depend on libm.
        drawn = raw.random(shape) * 2 - 1
        return (drawn * scale * 3**0.5 / shape[-1] ** 0.5).astype(np.float32)

    return draw


def _weights(vocabulary: int) -> dict[str, NDArray[np.float32]]:
    """Return weights that every version of NumPy draws in the same way."""
    draw = _drawing(30)
    made = {
        "model.embed_tokens.weight": draw(vocabulary, HIDDEN, scale=16),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": draw(vocabulary, HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        made |= {
            at + "input_layernorm.weight": 1 + draw(HIDDEN, scale=8),
            at + "post_attention_layernorm.weight": 1 + draw(HIDDEN, scale=8),
            at + "self_attn.q_proj.weight": draw(HEADS * HEAD, HIDDEN),
            at + "self_attn.k_proj.weight": draw(KV_HEADS * HEAD, HIDDEN),
            at + "self_attn.v_proj.weight": draw(KV_HEADS * HEAD, HIDDEN),
            at + "self_attn.o_proj.weight": draw(HIDDEN, HEADS * HEAD),
            at + "self_attn.q_norm.weight": np.ones(HEAD, np.float32),
            at + "self_attn.k_norm.weight": np.ones(HEAD, np.float32),
            at + "mlp.gate.weight": draw(EXPERTS, HIDDEN),
        }
        for expert in range(EXPERTS):
            of = f"{at}mlp.experts.{expert}."
            made |= {
                of + "gate_proj.weight": draw(INNER, HIDDEN),
                of + "up_proj.weight": draw(INNER, HIDDEN),
                of + "down_proj.weight": draw(HIDDEN, INNER),
            }
    return made


def _latent_weights(vocabulary: int) -> dict[str, NDArray[np.float32]]:
    draw = _drawing(31)
    made = {
        "model.embed_tokens.weight": draw(vocabulary, 64, scale=8),
        "model.norm.weight": np.ones(64, np.float32),
        "lm_head.weight": draw(vocabulary, 64),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        made |= {
            at + "input_layernorm.weight": 1 + draw(64, scale=4),
            at + "post_attention_layernorm.weight": 1 + draw(64, scale=4),
            at + "self_attn.q_a_proj.weight": draw(16, 64),
            at + "self_attn.q_a_layernorm.weight": np.ones(16, np.float32),
            at + "self_attn.q_b_proj.weight": draw(HEADS * 40, 16),
            at + "self_attn.kv_a_proj_with_mqa.weight": draw(48, 64),
            at + "self_attn.kv_a_layernorm.weight": 1 + draw(32, scale=2),
            at + "self_attn.kv_b_proj.weight": draw(HEADS * 44, 32),
            at + "self_attn.o_proj.weight": draw(64, HEADS * 20),
        }
        is_dense = layer < LAYERS - 1
        parts = {"mlp": 96} if is_dense else {
            "mlp.shared_experts": 32, "mlp.experts.0": 32, "mlp.experts.1": 32,
        }  # fmt: skip
        for name, inner in parts.items():
            made |= {
                f"{at}{name}.gate_proj.weight": draw(inner, 64),
                f"{at}{name}.up_proj.weight": draw(inner, 64),
                f"{at}{name}.down_proj.weight": draw(64, inner),
            }
        if not is_dense:
            made[at + "mlp.gate.weight"] = draw(2, 64)
    return made
