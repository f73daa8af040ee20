"""Qwen3.5, mixtures of experts, and the text model of its multimodal models.

Names and keys: transformers' `modeling_qwen3_5_moe.py` and `configuration_qwen3_5_moe.py`;
llama.cpp's `models/qwen35moe.cpp` and `conversion/qwen.py`.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.decoder_keys import with_keys
from weightctl.families.delta import (
    BLOCKS,
    DELTA_DEFAULTS,
    DELTA_MTP,
    DELTA_MTP_LINES,
    GATED_QUERIES,
    SHARED_EXPERT_LINES,
    check_delta,
    delta_lines,
)
from weightctl.families.experts import (
    EXPERT_WIDTH,
    SHARED_WIDTH,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import REQUIRED
from weightctl.families.mtp import mtp_keys, with_mtp_lines
from weightctl.families.qwen35 import (
    MULTIMODAL_PARTS,
    MULTIMODAL_PREFIXES,
    QWEN35_KEYS,
    find_unlike_qwen35,
    standard_delta_text,
)
from weightctl.families.rope_sections import find_unrotated
from weightctl.families.tiled_heads import TILED_CHANGES, TILED_FORMS

_DEFAULTS = {
    **DELTA_DEFAULTS,
    "vocabulary": 248320,
    "hidden": 2048,
    "layers": 40,
    "kv_heads": 2,
}

FAMILY = Family(
    name="qwen35moe",
    model_types={
        "qwen3_5_moe_text": ModelType(class_name="Qwen3_5MoeForCausalLM", defaults=_DEFAULTS),
        "qwen3_5_moe": ModelType(
            class_name="Qwen3_5MoeForCausalLM", defaults=_DEFAULTS
        ),
    },
    # All layers have experts, so there is no width of an MLP.
    blocks={**BLOCKS, "shared_gate": True, "experts_normalized": True, "intermediate": 0},
    other_prefixes=MULTIMODAL_PREFIXES,
    beside=MULTIMODAL_PARTS,
    unloaded=find_unlike_qwen35,
    differs=find_unrotated,
    names=with_mtp_lines(
        expert_lines(delta_lines(TILED_CHANGES), more=SHARED_EXPERT_LINES), DELTA_MTP_LINES
    ),
    mtp=DELTA_MTP,
    keys=expert_keys(
        mtp_keys(
            with_keys(QWEN35_KEYS, without=("intermediate",)), "mtp_num_hidden_layers", most=1
        ),
        "num_experts",
        replace(EXPERT_WIDTH, default=512, gguf_default=REQUIRED),
        replace(SHARED_WIDTH, default=512, gguf_default=REQUIRED,
                hugging_face="shared_expert_intermediate_size"),
        experts=256,
        used=8,
    ),
    fusions=(*GATED_QUERIES, *TILED_FORMS, *expert_forms()),
    standard=standard_delta_text,
    checked=checking_experts(check_delta),
)  # fmt: skip
