"""Command R: attention and MLP read by one LayerNorm without bias; logits are scaled.

Names and keys: transformers' `modeling_cohere.py`; llama.cpp's `conversion/command_r.py`. Pairs
stand together in either convention.
"""

from __future__ import annotations

from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    LAYER_NORM,
    MULTIPLIERS,
    check_decoder,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import FLAG, Exactly
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard

__all__ = ["FAMILY"]

_NORMS = "norms of queries and keys are not supported"

FAMILY = Family(
    name="cohere",
    gguf="command-r",
    model_types={
        "cohere": ModelType(
            class_name="CohereForCausalLM",
            defaults={
                "vocabulary": 256000,
                "context": 8192,
                "hidden": 8192,
                "intermediate": 22528,
                "layers": 40,
                "heads": 64,
                "logit_scale": 0.0625,
                "rope_base": 500000.0,
                "tied": True,
            },
        )
    },
    blocks={
        "norm": "layer",
        "norm_bias": False,
        "parallel": True,
        "shared_norm": True,
        "rope_interleaved": True,
    },
    heads_fill_hidden=True,
    # llama.cpp reads no output of its own.
    names=adapt(DECODER, {"mlp_norm": None, "output": {"gguf": None}}),
    keys=with_keys(
        DECODER_KEYS,
        LAYER_NORM,
        MULTIPLIERS["logit_scale"],
        Key(field="tied", kind=FLAG, default=True, gguf_default=True,
            hugging_face="tie_word_embeddings"),
        *BIASES[:2],
        Key(field="has_qk_norms", kind=Exactly(False, _NORMS), default=False,
            hugging_face="use_qk_norm"),
    ),
    standard=standard,
    checked=check_decoder,
)  # fmt: skip
