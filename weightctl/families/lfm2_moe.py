"""LFM2, mixtures of experts: an LFM2 with experts in all layers except the first ones.

Names and keys: transformers' `modeling_lfm2_moe.py` and `configuration_lfm2_moe.py`; llama.cpp's
`models/lfm2moe.cpp` and `conversion/lfm2.py`.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.decoder_keys import rename_keys
from weightctl.families.experts import (
    EXPERT_WIDTH,
    LEADING_DENSE_KEYS,
    ROUTER_GATING,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.keys import Key
from weightctl.families.kinds import Exactly, Real
from weightctl.families.lfm2 import BLOCKS, DEFAULTS, KEYS, LINES, check, standard

_NORMALIZED = "llama.cpp divides the shares of experts by their sum in any case"
_UNSCALED = "llama.cpp does not scale the outputs of experts in LFM2"
_CORRECTED = "llama.cpp adds a bias to the scores of experts in any case"

FAMILY = Family(
    name="lfm2_moe",
    gguf="lfm2moe",
    model_types={
        "lfm2_moe": ModelType(
            class_name="Lfm2MoeForCausalLM",
            defaults={
                **DEFAULTS,
                "hidden": 2048,
                "intermediate": 7168,
                "expert_intermediate": 1792,
                "dense_first": 2,
            },
        )
    },
    blocks={**BLOCKS, "router": "sigmoid", "router_correction": True},
    heads_fill_hidden=True,
    names=expert_lines(
        LINES,
        "feed_forward.",
        parts=("w1", "w3", "w2"),
        more={"mlp.correction": "expert_bias"},
        dense=True,
    ),
    keys=expert_keys(
        KEYS,
        "num_experts",
        replace(EXPERT_WIDTH, gguf_default=None),
        replace(ROUTER_GATING, gguf_default=2),
        Key(field="experts_normalized", kind=Exactly(True, _NORMALIZED), default=True,
            gguf_default=True, hugging_face="norm_topk_prob"),
        Key(field="corrected", kind=Exactly(True, _CORRECTED), default=True,
            hugging_face="use_expert_bias"),
        # llama.cpp does not scale them.
        Key(field="experts_scale", kind=Real(0, 1e9), default=1.0,
            hugging_face="routed_scaling_factor"),
        Key(field="experts_scale", kind=Exactly(1.0, _UNSCALED), gguf_default=1.0),
        *rename_keys(LEADING_DENSE_KEYS, {"dense_first": "num_dense_layers"}),
        experts=32,
        used=4,
    ),
    fusions=(qkv_form(), *expert_forms()),
    standard=standard,
    checked=checking_experts(check),
)  # fmt: skip
