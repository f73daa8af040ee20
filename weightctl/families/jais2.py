"""Jais 2: a llama with LayerNorms, biases, and a plain MLP of squared ReLUs.

Names and keys: transformers' `modeling_jais2.py`; llama.cpp's `models/jais2.cpp`.
"""

from __future__ import annotations

from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    LAYER_NORM,
    activation,
    check_decoder,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard

FAMILY = Family(
    name="jais2",
    model_types={
        "jais2": ModelType(
            class_name="Jais2ForCausalLM",
            defaults={
                "vocabulary": 150272,
                "context": 8192,
                "hidden": 3328,
                "intermediate": 26624,
                "heads": 26,
                "attention_bias": True,
                "attention_output_bias": True,
                "mlp_bias": True,
            },
        )
    },
    blocks={"norm": "layer", "gated": False},
    names=adapt(
        DECODER,
        {
            "attention_norm": {"bias": True},
            "mlp_norm": {"bias": True},
            "mlp.gate": None,
            "norm": {"bias": True},
        },
    ),
    keys=with_keys(DECODER_KEYS, LAYER_NORM, activation("relu2"), *BIASES),
    standard=standard,
    checked=check_decoder,
)
