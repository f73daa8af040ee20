"""Qwen3, as dense models: a Qwen2 that norms each head of its queries and keys.

Names and keys: transformers' `modeling_qwen3.py` and `configuration_qwen3.py`; llama.cpp's
`convert_hf_to_gguf.py` and `llama-model.cpp`.
"""

from __future__ import annotations

from functools import partial

from weightctl.families.family import Family, ModelType, Name, layer_part, qkv_form
from weightctl.families.keys import Key, Present
from weightctl.families.kinds import FLAG
from weightctl.families.qwen2 import KEYS, check_fields, standard

__all__ = ["FAMILY"]

_part = partial(layer_part, "model.layers.{}.")

_NAMES = (
    Name(module="embedding", gguf="token_embd", hugging_face="model.embed_tokens"),
    _part("attention_norm", "attn_norm", "input_layernorm", is_float32=True),
    _part("attention.q", "attn_q", "self_attn.q_proj", bias="attention_bias"),
    _part("attention.k", "attn_k", "self_attn.k_proj", bias="attention_bias"),
    _part("attention.v", "attn_v", "self_attn.v_proj", bias="attention_bias"),
    _part("attention.q_norm", "attn_q_norm", "self_attn.q_norm", is_float32=True),
    _part("attention.k_norm", "attn_k_norm", "self_attn.k_norm", is_float32=True),
    _part("attention.o", "attn_output", "self_attn.o_proj", bias="attention_output_bias"),
    _part("mlp_norm", "ffn_norm", "post_attention_layernorm", is_float32=True),
    _part("mlp.gate", "ffn_gate", "mlp.gate_proj"),
    _part("mlp.up", "ffn_up", "mlp.up_proj"),
    _part("mlp.down", "ffn_down", "mlp.down_proj"),
    Name(module="norm", gguf="output_norm", hugging_face="model.norm", is_float32=True),
    Name(module="output", gguf="output", hugging_face="lm_head", unless="tied"),
)  # fmt: skip

FAMILY = Family(
    name="qwen3",
    model_types={
        "qwen3": ModelType(
            class_name="Qwen3ForCausalLM",
            defaults={
                "vocabulary": 151936,
                "context": 32768,
                "intermediate": 22016,
                "kv_heads": 32,
                "head_dim": 128,
            },
        )
    },
    config="weightctl.families.llama:LlamaConfig",
    module="weightctl.nn.models.qwen3:Qwen3",
    prefix="model.",
    names=_NAMES,
    keys=(
        *KEYS,
        Key(field="qk_norm", kind=FLAG, default=True, gguf_default=True),
        Key(field="attention_bias", kind=FLAG, default=False, hugging_face="attention_bias",
            seen=Present("blk.0.attn_q.bias", "blk.0.attn_qkv.bias")),
        # llama.cpp has no such biases.
        Key(field="attention_output_bias", kind=FLAG, default=False, gguf_default=False,
            hugging_face="attention_bias"),
    ),
    fusions=(qkv_form(),),
    standard=standard,
    checked=check_fields,
)  # fmt: skip
