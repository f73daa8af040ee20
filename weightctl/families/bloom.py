"""BLOOM: ALiBi positions, a norm after the embedding, and queries, keys and values by head.

Names and keys: transformers' `modeling_bloom.py`; llama.cpp's `models/bloom.cpp`.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.decoder_keys import (
    DECODER_KEYS,
    LAYER_NORM,
    PLAIN_HEADS,
    activation,
    check_decoder,
    rename_keys,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.gptneox import BY_HEAD
from weightctl.families.keys import Key, product
from weightctl.families.kinds import SIZE, Exactly
from weightctl.families.lines import layer_lines, line
from weightctl.families.rope_keys import ROPE_KEYS

_RESIDUAL = "residual connections after norms are not supported"

_KEYS = with_keys(
    DECODER_KEYS,
    # transformers has no limit, but llama.cpp requires one.
    Key(field="context", kind=SIZE, default=2048, gguf="{arch}.context_length"),
    *PLAIN_HEADS,
    replace(LAYER_NORM, hugging_face="layer_norm_epsilon"),
    activation("gelu_tanh", key=""),
    Key(field="intermediate", kind=SIZE, default=product("hidden", 4),
        gguf="{arch}.feed_forward_length"),
    Key(field="adds_normed", kind=Exactly(False, _RESIDUAL), default=False,
        hugging_face="apply_residual_connection_post_layernorm"),
    without=("value_dim", *(key.field for key in ROPE_KEYS)),
)  # fmt: skip

FAMILY = Family(
    name="bloom",
    model_types={
        "bloom": ModelType(
            class_name="BloomForCausalLM",
            defaults={
                "vocabulary": 250880,
                "hidden": 64,
                "layers": 2,
                "heads": 8,
                "tied": True,
            },
        )
    },
    blocks={
        "norm": "layer",
        "position": "alibi",
        "embedding_norm": True,
        "gated": False,
        "fused_qkv": True,
        "attention_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
    },
    prefix="transformer.",
    names=(
        line("embedding", hugging_face="transformer.word_embeddings"),
        line("embedding_norm", hugging_face="transformer.word_embeddings_layernorm", bias=True),
        *layer_lines(
            "transformer.h.{}.",
            {
                "attention_norm": "input_layernorm",
                "attention.qkv": {
                    "hugging_face": "self_attention.query_key_value",
                    "change": BY_HEAD,
                },
                "attention.o": "self_attention.dense",
                "mlp_norm": "post_attention_layernorm",
                "mlp.up": "mlp.dense_h_to_4h",
                "mlp.down": "mlp.dense_4h_to_h",
            },
            bias=True,
        ),
        line("norm", hugging_face="transformer.ln_f", bias=True),
        line("output"),
    ),
    keys=rename_keys(_KEYS, {"layers": "n_layer", "heads": "n_head"}),
    checked=check_decoder,
)
