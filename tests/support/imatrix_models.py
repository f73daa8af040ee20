"""Models that importance matrices of llama-imatrix in fixtures/imatrix were measured on."""

from __future__ import annotations

import json
from shutil import copyfile
from typing import TYPE_CHECKING

import numpy as np

from conftest import ROOT
from weightctl import convert
from weightctl.write.save import save

if TYPE_CHECKING:
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


def mixture_directory(folder: Path) -> Path:
    """Write a mixture of experts with random weights, and the tokenizer of tiny-llama."""
    made = folder / "mixture"
    made.mkdir()
    tiny = json.loads((TINY / "config.json").read_text())
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": tiny["vocab_size"],
        "max_position_embeddings": 1024,
        "hidden_size": HIDDEN,
        "intermediate_size": 512,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "num_experts": EXPERTS,
        "num_experts_per_tok": USED,
        "moe_intermediate_size": INNER,
        "norm_topk_prob": True,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        **{key: tiny[key] for key in ("bos_token_id", "eos_token_id") if key in tiny},
    }
    (made / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copyfile(TINY / name, made / name)
    save(_weights(tiny["vocab_size"]), made / "model.safetensors")
    return made


def mixture(folder: Path) -> Path:
    """Write the mixture of experts as a GGUF file in F32."""
    made = folder / "mixture-f32.gguf"
    convert(mixture_directory(folder), made, dtype="f32")
    return made


def _weights(vocabulary: int) -> dict[str, NDArray[np.float32]]:
    """Return weights that every version of NumPy draws in the same way."""
    raw = np.random.Generator(np.random.PCG64(30))

    def draw(*shape: int, scale: float = 1.0) -> NDArray[np.float32]:
        # Uniform numbers are a multiple of the random bits, so that they do not depend on libm.
        drawn = raw.random(shape) * 2 - 1
        return (drawn * scale * 3**0.5 / shape[-1] ** 0.5).astype(np.float32)

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
