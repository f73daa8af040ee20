"""StableLM 2: LayerNorms, RoPE on a part of each head, and sequential or parallel blocks.

Names and keys: transformers' `modeling_stablelm.py`; llama.cpp's `conversion/stablelm.py`.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    LAYER_NORM,
    PARTIAL_ROPE,
    check_decoder,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key, same
from weightctl.families.kinds import FLAG, Exactly
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard

_NORMS = "norms of queries and keys are not supported"

FAMILY = Family(
    name="stablelm",
    model_types={
        "stablelm": ModelType(
            class_name="StableLmForCausalLM",
            defaults={
                "vocabulary": 50304,
                "context": 4096,
                "hidden": 2560,
                "intermediate": 6912,
                "rotated_share": 0.25,
            },
        )
    },
    blocks={"norm": "layer"},
    heads_fill_hidden=True,
    names=adapt(
        DECODER,
        {
            "attention_norm": {"bias": True},
            "mlp_norm": {"bias": True, "unless": "shared_norm"},
            "norm": {"bias": True},
        },
    ),
    keys=with_keys(
        DECODER_KEYS,
        LAYER_NORM,
        PARTIAL_ROPE,
        replace(BIASES[0], hugging_face="use_qkv_bias"),
        Key(field="parallel", kind=FLAG, default=False, gguf_default=False,
            gguf="{arch}.use_parallel_residual", hugging_face="use_parallel_residual",
            written=True),
        # Parallel attention and MLP share a norm.
        Key(field="shared_norm", kind=FLAG, default=same("parallel"),
            gguf_default=same("parallel")),
        Key(field="has_qk_norms", kind=Exactly(False, _NORMS), default=False,
            hugging_face="qk_layernorm"),
    ),
    standard=standard,
    checked=check_decoder,
)  # fmt: skip
