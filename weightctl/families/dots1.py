"""dots.llm1: a Qwen3 whose experts have sigmoid scores, with a shared MLP beside them.

Names and keys: transformers' `modeling_dots1.py`; llama.cpp's `conversion/qwen.py`.
"""

from __future__ import annotations

from weightctl.families.decoder_keys import BIASES, DECODER_KEYS, check_decoder, with_keys
from weightctl.families.experts import (
    ROUTED_KEYS,
    ROUTED_LINES,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
    find_shared_heads,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.layers import no_windows
from weightctl.families.qwen3 import FAMILY as QWEN3
from weightctl.families.rope_keys import standard

FAMILY = Family(
    name="dots1",
    model_types={
        "dots1": ModelType(
            class_name="Dots1ForCausalLM",
            defaults={
                "vocabulary": 152064,
                "hidden": 4608,
                "layers": 62,
                "intermediate": 10944,
                "expert_intermediate": 1408,
            },
        )
    },
    blocks={"qk_norm": "head", "router": "sigmoid", "router_correction": True},
    heads_fill_hidden=True,
    unloaded=find_shared_heads,
    names=expert_lines(
        QWEN3.names,
        dense=True,
        more=ROUTED_LINES,
    ),
    keys=expert_keys(
        with_keys(DECODER_KEYS, *BIASES[:2], no_windows("dots1")),
        "n_routed_experts",
        *ROUTED_KEYS,
        experts=128,
        used=6,
    ),
    fusions=expert_forms(),
    standard=standard,
    checked=checking_experts(check_decoder),
)
