"""The first OLMo: a llama whose LayerNorms have neither weight nor bias.

Names and keys: transformers' `modeling_olmo.py`; llama.cpp's `conversion/olmo.py`.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.decoder_keys import (
    DECODER_KEYS,
    KQV_CLAMP,
    LAYER_NORM,
    check_decoder,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import Exactly
from weightctl.families.lines import DECODER, adapt
from weightctl.families.llama import ROPE_ROWS
from weightctl.families.rope_keys import standard

FAMILY = Family(
    name="olmo",
    model_types={
        "olmo": ModelType(class_name="OlmoForCausalLM", defaults={"vocabulary": 50304})
    },
    blocks={"norm": "layer", "norm_weight": False, "norm_bias": False},
    heads_fill_hidden=True,
    names=adapt(DECODER, {**ROPE_ROWS, "attention_norm": None, "mlp_norm": None, "norm": None}),
    keys=with_keys(
        DECODER_KEYS,
        # transformers does not support another value.
        replace(LAYER_NORM, hugging_face=""),
        KQV_CLAMP,
        Key(field="has_biases", kind=Exactly(False, "attention biases are not supported"),
            default=False, hugging_face="attention_bias"),
    ),
    standard=standard,
    checked=check_decoder,
)  # fmt: skip
