"""StarCoder2: LayerNorms, biases, and a plain MLP.

Names and keys: transformers' `modeling_starcoder2.py`; llama.cpp's `conversion/starcoder.py`.
llama.cpp ignores the sliding window and uses full attention.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    LAYER_NORM,
    SLIDING_WINDOW,
    activation,
    check_decoder,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard

FAMILY = Family(
    name="starcoder2",
    model_types={
        "starcoder2": ModelType(
            class_name="Starcoder2ForCausalLM",
            defaults={
                "vocabulary": 49152,
                "context": 4096,
                "hidden": 3072,
                "intermediate": 12288,
                "layers": 30,
                "heads": 24,
                "kv_heads": 2,
                "tied": True,
                "attention_bias": True,
                "attention_output_bias": True,
                "mlp_bias": True,
            },
        )
    },
    blocks={"norm": "layer", "gated": False},
    heads_fill_hidden=True,
    names=adapt(
        DECODER,
        {
            "attention_norm": {"bias": True},
            "mlp_norm": {"bias": True},
            "mlp.gate": None,
            "mlp.up": "mlp.c_fc",
            "mlp.down": "mlp.c_proj",
            "norm": {"bias": True},
        },
    ),
    keys=with_keys(
        DECODER_KEYS,
        replace(LAYER_NORM, hugging_face="norm_epsilon"),
        activation("gelu_tanh", "gelu_pytorch_tanh"),
        SLIDING_WINDOW,
        *(replace(key, hugging_face="use_bias") for key in BIASES),
    ),
    standard=standard,
    checked=check_decoder,
)
