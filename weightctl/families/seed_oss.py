"""Seed-OSS: a Qwen2 whose second norm has another name in GGUF.

Names and keys: transformers' `modeling_seed_oss.py`; llama.cpp's `models/seed-oss.cpp`.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.decoder_keys import BIASES, DECODER_KEYS, check_decoder, with_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard

FAMILY = Family(
    name="seed_oss",
    model_types={
        "seed_oss": ModelType(
            class_name="SeedOssForCausalLM",
            defaults={
                "vocabulary": 155136,
                "context": 524288,
                "intermediate": 27648,
                "layers": 64,
                "heads": 80,
                "kv_heads": 8,
                "head_dim": 128,
                "attention_bias": True,
            },
        )
    },
    names=adapt(DECODER, {"mlp_norm": {"gguf": "blk.{}.post_attention_norm"}}),
    keys=with_keys(
        DECODER_KEYS, BIASES[0], replace(BIASES[1], hugging_face="attention_out_bias"), BIASES[2]
    ),
    standard=standard,
    checked=check_decoder,
)
