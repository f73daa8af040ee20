"""Phi-1, Phi-1.5 and Phi-2: attention and MLP share a norm, and RoPE on a part of each head.

Names and keys: transformers' `modeling_phi.py`; llama.cpp's `models/phi2.cpp`.
"""

from __future__ import annotations

from weightctl.families.decoder_keys import (
    DECODER_KEYS,
    LAYER_NORM,
    PARTIAL_ROPE,
    activation,
    check_decoder,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.keys import Key
from weightctl.families.kinds import Exactly
from weightctl.families.lines import layer_lines, line
from weightctl.families.rope_keys import standard

_NORMS = "norms of queries and keys are not supported"

FAMILY = Family(
    name="phi2",
    model_types={
        "phi": ModelType(
            class_name="PhiForCausalLM",
            defaults={
                "vocabulary": 51200,
                "hidden": 2048,
                "layers": 24,
                "intermediate": 8192,
                "rotated_share": 0.5,
            },
        )
    },
    blocks={
        "norm": "layer",
        "parallel": True,
        "shared_norm": True,
        "gated": False,
        "attention_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "output_bias": True,
    },
    heads_fill_hidden=True,
    names=(
        line("embedding"),
        *layer_lines(
            "model.layers.{}.",
            {
                "attention_norm": {"hugging_face": "input_layernorm", "bias": True},
                "attention.q": "self_attn.q_proj",
                "attention.k": "self_attn.k_proj",
                "attention.v": "self_attn.v_proj",
                "attention.o": "self_attn.dense",
                "mlp.up": "mlp.fc1",
                "mlp.down": "mlp.fc2",
            },
        ),
        line("norm", hugging_face="model.final_layernorm", bias=True),
        line("output", bias=True),
    ),
    keys=with_keys(
        DECODER_KEYS,
        LAYER_NORM,
        PARTIAL_ROPE,
        activation("gelu_tanh", "gelu_new"),
        Key(field="has_qk_norms", kind=Exactly(False, _NORMS), default=False,
            hugging_face="qk_layernorm"),
    ),
    fusions=(qkv_form(),),
    standard=standard,
    checked=check_decoder,
)  # fmt: skip
