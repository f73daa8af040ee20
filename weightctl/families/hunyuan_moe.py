"""Hunyuan of 2025, mixtures of experts: the dense model with experts beside its MLP.

Names and keys: transformers' `modeling_hunyuan_v1_moe.py`; llama.cpp's `models/hunyuan-moe.cpp`.
All experts and the shared MLP are as wide as `intermediate_size` states.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.decoder_keys import check_decoder
from weightctl.families.experts import (
    EXPERT_WIDTH,
    SHARED_WIDTH,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import ModelType
from weightctl.families.hunyuan_dense import FAMILY as HUNYUAN
from weightctl.families.hunyuan_dense import HUNYUAN_DEFAULTS
from weightctl.families.keys import Key, same
from weightctl.families.kinds import WholeNumber
from weightctl.families.layers import Uniform

_COUNT = Uniform(WholeNumber(1, 1024))

FAMILY = replace(
    HUNYUAN,
    name="hunyuan_moe",
    gguf="hunyuan-moe",
    model_types={
        "hunyuan_v1_moe": ModelType(class_name="HunYuanMoEV1ForCausalLM", defaults=HUNYUAN_DEFAULTS)
    },
    names=expert_lines(
        HUNYUAN.names,
        more={
            "mlp.router": "gate.wg",
            "mlp.shared.gate": "shared_mlp.gate_proj",
            "mlp.shared.up": "shared_mlp.up_proj",
            "mlp.shared.down": "shared_mlp.down_proj",
        },
    ),
    keys=expert_keys(
        HUNYUAN.keys,
        "num_experts",
        Key(field="experts_used", kind=_COUNT, default=1, gguf="{arch}.expert_used_count",
            hugging_face="moe_topk"),
        *(
            replace(key, default=same("intermediate"), hugging_face="", written=True)
            for key in (EXPERT_WIDTH, SHARED_WIDTH)
        ),
        experts=1,
        used=1,
    ),
    fusions=expert_forms(),
    checked=checking_experts(check_decoder),
)  # fmt: skip
