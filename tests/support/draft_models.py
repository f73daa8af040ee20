"""Tiny EAGLE-3 draft models in the forms that llama.cpp's converter reads, and their definition."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file, save_file

from lazy import LazyModule, torch

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

__all__ = ["DRAFTED", "HIDDEN", "TOKENS", "draw_states", "make_draft", "run_draft"]

llama: Any = LazyModule("transformers.models.llama.modeling_llama")
configs: Any = LazyModule("transformers.models.llama.configuration_llama")

# As the target of the tests: the case `llama`.
TOKENS, HIDDEN, TARGET_HIDDEN, DRAFTED = 640, 256, 192, 320
_HEADS, _KV_HEADS, _SIZE, _INNER = 4, 2, 48, 352
# The epsilon and RoPE are those of Llama 3.1, with a shorter original context; no release was read.
_LAYER = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": _INNER,
    "num_attention_heads": _HEADS, "num_key_value_heads": _KV_HEADS, "head_dim": _SIZE,
    "num_hidden_layers": 1, "vocab_size": TOKENS, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "max_position_embeddings": 2048, "hidden_act": "silu", "attention_bias": False,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}  # fmt: skip


def make_draft(
    into: Path,
    *,
    nested: bool = False,
    embedded: bool = True,
    drafted: int = DRAFTED,
    target: int = TARGET_HIDDEN,
    **config: Any,
) -> Path:
    """Return a directory with a draft model in SafeAILab's form, or `nested` as speculators do.

    `embedded` states that it has its own embedding. `config` is what its config.json has besides.
    """
    into.mkdir()
    draw = np.random.default_rng(7)

    def matrix(outputs: int, inputs: int) -> Floats:
        return draw.normal(0, inputs**-0.5, (outputs, inputs)).astype(np.float32)

    def norm(size: int = HIDDEN) -> Floats:
        return draw.normal(1, 0.25, size).astype(np.float32)

    heads, keys = _HEADS * _SIZE, _KV_HEADS * _SIZE
    layer = {
        "hidden_norm": norm(), "input_layernorm": norm(), "post_attention_layernorm": norm(),
        "self_attn.q_proj": matrix(heads, 2 * HIDDEN),
        "self_attn.k_proj": matrix(keys, 2 * HIDDEN),
        "self_attn.v_proj": matrix(keys, 2 * HIDDEN),
        "self_attn.o_proj": matrix(HIDDEN, heads),
        "mlp.gate_proj": matrix(_INNER, HIDDEN), "mlp.up_proj": matrix(_INNER, HIDDEN),
        "mlp.down_proj": matrix(HIDDEN, _INNER),
    }  # fmt: skip
    prefix = "layers.0" if nested else "midlayer"
    tensors: dict[str, NDArray[Any]] = {
        "fc.weight": matrix(HIDDEN, 3 * target), "norm.weight": norm(),
        "lm_head.weight": 2 * matrix(drafted, HIDDEN),
        **{f"{prefix}.{name}.weight": each for name, each in layer.items()},
    }  # fmt: skip
    if embedded:
        tensors["embed_tokens.weight"] = matrix(TOKENS, HIDDEN)
    if config.get("norm_before_fc") or config.get("eagle_config", {}).get("norm_before_fc"):
        tensors["input_norm.weight"] = norm(3 * target)
    if drafted < TOKENS:
        known = np.sort(draw.permutation(TOKENS)[:drafted])
        tensors["d2t"] = known - np.arange(drafted)
        tensors["t2d"] = np.isin(np.arange(TOKENS), known)
    save_file(tensors, into / "model.safetensors", {"format": "pt"})
    stated = {"draft_vocab_size": drafted, "tie_word_embeddings": False, **config}
    if target != HIDDEN:
        stated["target_hidden_size"] = target
    if nested:
        stated |= {
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
            "transformer_layer_config": _LAYER,
        }  # fmt: skip
    else:
        stated = {"architectures": ["LlamaForCausalLMEagle3"], **_LAYER, **stated}
    (into / "config.json").write_text(json.dumps(stated))
    return into


def draw_states(count: int, target: int = TARGET_HIDDEN) -> tuple[list[int], Floats]:
    """Return tokens, and states of a target for them."""
    draw = np.random.default_rng(11)
    states = draw.normal(0, 1, (count, 3 * target)).astype(np.float32)
    return draw.integers(0, TOKENS, count).tolist(), states


def run_draft(path: Path, tokens: list[int], states: Floats) -> tuple[Floats, Floats]:
    """Return what a draft makes of a target's states, and its logits, -inf of other tokens."""
    document = json.loads((path / "config.json").read_text())
    document |= document.pop("transformer_layer_config", {}) | document.pop("eagle_config", {})
    named = {"architectures", "model_type"}
    config = configs.LlamaConfig(**{key: document[key] for key in document.keys() - named})
    stored = {name: torch.from_numpy(each) for name, each in
              load_file(path / "model.safetensors").items()}  # fmt: skip
    layer = "midlayer" if "midlayer.hidden_norm.weight" in stored else "layers.0"

    def norm(values: Any, name: str) -> Any:
        size, weight = (values.shape[-1],), stored[f"{name}.weight"]
        return torch.nn.functional.rms_norm(values, size, weight, config.rms_norm_eps)

    def project(values: Any, name: str) -> Any:
        return values @ stored[f"{name}.weight"].T

    given = torch.from_numpy(states)
    made = project(norm(given, "input_norm") if "input_norm.weight" in stored else given, "fc")
    normed = norm(made, f"{layer}.hidden_norm")
    embedded = norm(stored["embed_tokens.weight"][tokens], f"{layer}.input_layernorm")
    read, positions = torch.cat([embedded, normed], -1), torch.arange(len(tokens))[None]
    q, k, v = (
        project(read, f"{layer}.self_attn.{part}_proj")
        .view(1, len(tokens), -1, config.head_dim)
        .transpose(1, 2)
        for part in "qkv"
    )
    q, k = llama.apply_rotary_pos_emb(q, k, *llama.LlamaRotaryEmbedding(config)(read, positions))
    attended = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    base = normed if document.get("norm_before_residual") else made
    out = base + project(attended.transpose(1, 2).reshape(len(tokens), -1),
                         f"{layer}.self_attn.o_proj")  # fmt: skip
    inner = norm(out, f"{layer}.post_attention_layernorm")
    gated = torch.nn.functional.silu(project(inner, f"{layer}.mlp.gate_proj"))
    out += project(gated * project(inner, f"{layer}.mlp.up_proj"), f"{layer}.mlp.down_proj")
    drafted = project(norm(out, "norm"), "lm_head")
    logits = torch.full((len(tokens), TOKENS), -torch.inf)
    known = torch.arange(drafted.shape[1]) + stored.get("d2t", 0)
    logits[:, known] = drafted
    return made.numpy(), logits.numpy()
