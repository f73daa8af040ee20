"""Arcee's AFM: a llama with a plain MLP of squared ReLUs.

Names and keys: transformers' `modeling_arcee.py`; llama.cpp's `conversion/llama.py`.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.decoder_keys import activation, with_keys
from weightctl.families.family import ModelType
from weightctl.families.lines import adapt
from weightctl.families.llama import FAMILY as LLAMA

FAMILY = replace(
    LLAMA,
    name="arcee",
    model_types={
        "arcee": ModelType(
            class_name="ArceeForCausalLM",
            defaults={
                "context": 4096,
                "hidden": 2560,
                "intermediate": 18432,
                "norm_epsilon": 1e-5,
            },
        )
    },
    blocks={"gated": False},
    names=adapt(LLAMA.names, {"mlp.gate": None}),
    keys=with_keys(LLAMA.keys, activation("relu2"), without=("sliding_window",)),
    beside=(),
)
