"""ERNIE 4.5, dense models: a llama whose rotated pairs are neighbors in both conventions.

Names and keys: transformers' `modeling_ernie4_5.py`; llama.cpp's `conversion/ernie.py`.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.decoder_keys import BIASES, DECODER_KEYS, check_decoder, with_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.lines import DECODER
from weightctl.families.rope_keys import standard

FAMILY = Family(
    name="ernie4_5",
    model_types={
        "ernie4_5": ModelType(
            class_name="Ernie4_5ForCausalLM",
            defaults={
                "vocabulary": 103424,
                "context": 131072,
                "hidden": 1024,
                "intermediate": 3072,
                "layers": 18,
                "heads": 16,
                "kv_heads": 2,
                "head_dim": 128,
                "norm_epsilon": 1e-5,
                "rope_base": 500000.0,
                "tied": True,
            },
        )
    },
    blocks={"rope_interleaved": True},
    names=DECODER,
    keys=with_keys(DECODER_KEYS, *(replace(key, hugging_face="use_bias") for key in BIASES)),
    standard=standard,
    checked=check_decoder,
)
