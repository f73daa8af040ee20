"""GLM-4 of 2025: four norms, RoPE on half of each head, and gate and up in one tensor.

Names and keys: transformers' `modeling_glm4.py`; llama.cpp's `conversion/glm.py`. Rotated pairs are
neighbors in both conventions.
"""

from __future__ import annotations

from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    PARTIAL_ROPE,
    check_decoder,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard

FAMILY = Family(
    name="glm4",
    model_types={
        "glm4": ModelType(
            class_name="Glm4ForCausalLM",
            defaults={
                "vocabulary": 151552,
                "context": 131072,
                "intermediate": 13696,
                "layers": 40,
                "kv_heads": 2,
                "head_dim": 128,
                "norm_epsilon": 1.5625e-07,
                "attention_bias": True,
                "rotated_share": 0.5,
            },
        )
    },
    blocks={"post_norms": True, "fused_gate_up": True, "rope_interleaved": True},
    names=adapt(
        DECODER,
        {
            "post_attention_norm": "post_self_attn_layernorm",
            "post_mlp_norm": "post_mlp_layernorm",
            "mlp.gate": None,
            "mlp.up": None,
            "mlp.gate_up": {},
        },
    ),
    keys=with_keys(DECODER_KEYS, BIASES[0], PARTIAL_ROPE),
    standard=standard,
    checked=check_decoder,
)
