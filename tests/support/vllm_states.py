"""The tensors of vLLM's models on each of two ranks, of the small models of one layer.

Printed by vLLM 0.33.0 itself (commit 4ba787ec9): its model classes were built on a CPU in two
processes of gloo, from `small_models` with `num_hidden_layers=1`, and `state_dict()` was passed
through `ShardedStateLoader._filter_subtensors`. Both ranks have the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CLASSES", "STATES"]

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "bert": "BertModel",
}

_SCALES: dict[str, tuple[int, ...]] = {
    "_k_scale": (),
    "_prob_scale": (),
    "_q_scale": (),
    "_v_scale": (),
}


def _scales(attention: str) -> dict[str, tuple[int, ...]]:
    return {f"{attention}.attn.{name}": shape for name, shape in _SCALES.items()}


STATES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "llama": {
        "lm_head.weight": (64, 64),
        "model.embed_tokens.weight": (64, 64),
        "model.layers.0.input_layernorm.weight": (64,),
        "model.layers.0.mlp.down_proj.weight": (64, 48),
        "model.layers.0.mlp.gate_up_proj.weight": (96, 64),
        "model.layers.0.post_attention_layernorm.weight": (64,),
        "model.layers.0.self_attn.o_proj.weight": (64, 32),
        "model.layers.0.self_attn.qkv_proj.weight": (64, 64),
        "model.norm.weight": (64,),
        **_scales("model.layers.0.self_attn"),
    },
    "mixtral": {
        "lm_head.weight": (64, 64),
        "model.embed_tokens.weight": (64, 64),
        "model.layers.0.block_sparse_moe.experts.routed_experts.w13_weight": (4, 96, 64),
        "model.layers.0.block_sparse_moe.experts.routed_experts.w2_weight": (4, 64, 48),
        "model.layers.0.block_sparse_moe.gate.weight": (4, 64),
        "model.layers.0.input_layernorm.weight": (64,),
        "model.layers.0.post_attention_layernorm.weight": (64,),
        "model.layers.0.self_attn.o_proj.weight": (64, 32),
        "model.layers.0.self_attn.qkv_proj.weight": (64, 64),
        "model.norm.weight": (64,),
        **_scales("model.layers.0.self_attn"),
    },
    "qwen2": {
        "lm_head.weight": (64, 64),
        "model.embed_tokens.weight": (64, 64),
        "model.layers.0.input_layernorm.weight": (64,),
        "model.layers.0.mlp.down_proj.weight": (64, 48),
        "model.layers.0.mlp.gate_up_proj.weight": (96, 64),
        "model.layers.0.post_attention_layernorm.weight": (64,),
        "model.layers.0.self_attn.o_proj.weight": (64, 32),
        "model.layers.0.self_attn.qkv_proj.bias": (64,),
        "model.layers.0.self_attn.qkv_proj.weight": (64, 64),
        "model.norm.weight": (64,),
        **_scales("model.layers.0.self_attn"),
    },
    "qwen3": {
        "lm_head.weight": (64, 64),
        "model.embed_tokens.weight": (64, 64),
        "model.layers.0.input_layernorm.weight": (64,),
        "model.layers.0.mlp.down_proj.weight": (64, 48),
        "model.layers.0.mlp.gate_up_proj.weight": (96, 64),
        "model.layers.0.post_attention_layernorm.weight": (64,),
        "model.layers.0.self_attn.k_norm.weight": (32,),
        "model.layers.0.self_attn.o_proj.weight": (64, 64),
        "model.layers.0.self_attn.q_norm.weight": (32,),
        "model.layers.0.self_attn.qkv_proj.weight": (128, 64),
        "model.norm.weight": (64,),
        **_scales("model.layers.0.self_attn"),
    },
    "qwen3moe": {
        "lm_head.weight": (64, 64),
        "model.embed_tokens.weight": (64, 64),
        "model.layers.0.input_layernorm.weight": (64,),
        "model.layers.0.mlp.experts.gate.weight": (4, 64),
        "model.layers.0.mlp.experts.routed_experts.w13_weight": (4, 32, 64),
        "model.layers.0.mlp.experts.routed_experts.w2_weight": (4, 64, 16),
        "model.layers.0.post_attention_layernorm.weight": (64,),
        "model.layers.0.self_attn.k_norm.weight": (32,),
        "model.layers.0.self_attn.o_proj.weight": (64, 64),
        "model.layers.0.self_attn.q_norm.weight": (32,),
        "model.layers.0.self_attn.qkv_proj.weight": (128, 64),
        "model.norm.weight": (64,),
        **_scales("model.layers.0.self_attn"),
    },
    "gemma2": {
        "model.embed_tokens.weight": (64, 64),
        "model.layers.0.input_layernorm.weight": (64,),
        "model.layers.0.mlp.down_proj.weight": (64, 48),
        "model.layers.0.mlp.gate_up_proj.weight": (96, 64),
        "model.layers.0.post_attention_layernorm.weight": (64,),
        "model.layers.0.post_feedforward_layernorm.weight": (64,),
        "model.layers.0.pre_feedforward_layernorm.weight": (64,),
        "model.layers.0.self_attn.o_proj.weight": (64, 64),
        "model.layers.0.self_attn.qkv_proj.weight": (128, 64),
        "model.norm.weight": (64,),
        **_scales("model.layers.0.self_attn"),
    },
    "gemma3": {
        "lm_head.weight": (64, 64),
        "model.layers.0.input_layernorm.weight": (64,),
        "model.layers.0.mlp.down_proj.weight": (64, 48),
        "model.layers.0.mlp.gate_up_proj.weight": (96, 64),
        "model.layers.0.post_attention_layernorm.weight": (64,),
        "model.layers.0.post_feedforward_layernorm.weight": (64,),
        "model.layers.0.pre_feedforward_layernorm.weight": (64,),
        "model.layers.0.self_attn.k_norm.weight": (32,),
        "model.layers.0.self_attn.o_proj.weight": (64, 64),
        "model.layers.0.self_attn.q_norm.weight": (32,),
        "model.layers.0.self_attn.qkv_proj.weight": (128, 64),
        "model.norm.weight": (64,),
        **_scales("model.layers.0.self_attn"),
    },
    "phi3": {
        "lm_head.weight": (64, 64),
        "model.embed_tokens.weight": (64, 64),
        "model.layers.0.input_layernorm.weight": (64,),
        "model.layers.0.mlp.down_proj.weight": (64, 48),
        "model.layers.0.mlp.gate_up_proj.weight": (96, 64),
        "model.layers.0.post_attention_layernorm.weight": (64,),
        "model.layers.0.self_attn.o_proj.weight": (64, 32),
        "model.layers.0.self_attn.qkv_proj.weight": (64, 64),
        "model.norm.weight": (64,),
        **_scales("model.layers.0.self_attn"),
    },
    "bert": {
        "model.embeddings.LayerNorm.bias": (64,),
        "model.embeddings.LayerNorm.weight": (64,),
        "model.embeddings.position_embeddings.weight": (32, 64),
        "model.embeddings.position_ids": (1, 64),
        "model.embeddings.token_type_embeddings.weight": (32, 64),
        "model.embeddings.word_embeddings.weight": (64, 64),
        "model.encoder.layer.0.attention.output.LayerNorm.bias": (64,),
        "model.encoder.layer.0.attention.output.LayerNorm.weight": (64,),
        "model.encoder.layer.0.attention.output.dense.bias": (64,),
        "model.encoder.layer.0.attention.output.dense.weight": (64, 32),
        "model.encoder.layer.0.attention.self.qkv_proj.bias": (96,),
        "model.encoder.layer.0.attention.self.qkv_proj.weight": (96, 64),
        "model.encoder.layer.0.intermediate.dense.bias": (48,),
        "model.encoder.layer.0.intermediate.dense.weight": (48, 64),
        "model.encoder.layer.0.output.LayerNorm.bias": (64,),
        "model.encoder.layer.0.output.LayerNorm.weight": (64,),
        "model.encoder.layer.0.output.dense.bias": (64,),
        "model.encoder.layer.0.output.dense.weight": (64, 48),
        **_scales("model.encoder.layer.0.attention.self"),
    },
}
