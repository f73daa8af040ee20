"""StarCoder and SantaCoder: a GPT-2 whose query heads share one KV head.

Names and keys: transformers' `modeling_gpt_bigcode.py`; llama.cpp's `models/starcoder.cpp`.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.decoder_keys import PLAIN_HEADS, activation, with_keys
from weightctl.families.family import ModelType
from weightctl.families.gpt2 import FAMILY as GPT2
from weightctl.families.keys import Key
from weightctl.families.kinds import HEADS, Exactly

_SHARED = "models with one KV head for each query head are not supported"

FAMILY = replace(
    GPT2,
    name="starcoder",
    model_types={
        "gpt_bigcode": ModelType(
            class_name="GPTBigCodeForCausalLM", defaults=GPT2.model_types["gpt2"].defaults
        )
    },
    names=tuple(replace(line, change=None) for line in GPT2.names),
    keys=with_keys(
        GPT2.keys,
        Key(field="kv_heads", kind=HEADS, default=1, gguf_default=1,
            gguf="{arch}.attention.head_count_kv", written=True),
        PLAIN_HEADS[1],
        activation("gelu_tanh", "gelu_pytorch_tanh", key="activation_function"),
        Key(field="shares_keys", kind=Exactly(True, _SHARED), default=True,
            hugging_face="multi_query"),
        without=("is_scaled_by_layer",),
    ),
)  # fmt: skip
