"""DeepSeek-V3 and Kimi K2: a DeepSeek-V2 whose experts have sigmoid scores, in groups.

Names and keys: transformers' `modeling_deepseek_v3.py`; llama.cpp's `models/deepseek2.cpp` and
`conversion/deepseek.py`. llama.cpp's converter leaves out the layers of multi-token prediction, but
its loader reads them, with the names that it has for GLM-4.7-Flash in this architecture.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.families.decoder_keys import DECODER_KEYS, activation
from weightctl.families.deepseek_v2 import FAMILY as DEEPSEEK_V2
from weightctl.families.deepseek_v2 import GATING, NO_BIASES, SIGMOID
from weightctl.families.experts import (
    ROUTED_KEYS,
    ROUTED_LINES,
    checking_experts,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import Exactly
from weightctl.families.latent import (
    LATENT_DECODER,
    YARN_MULTIPLIER,
    check_latent,
    find_difference_of_scaling,
    find_unlike_latent,
    latent_keys,
)
from weightctl.families.mtp import MTP_LINES, MtpForm, mtp_keys, with_mtp_lines
from weightctl.families.rope_keys import standard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.metadata import MetadataValue

ONLY_NEIGHBORS = Key(
    field="interleaved",
    kind=Exactly(True, "only interleaved RoPE is supported in this family"),
    default=True,
    hugging_face="rope_interleave",
)


def _is_sigmoid(metadata: Mapping[str, MetadataValue]) -> bool:
    return GATING in metadata and metadata[GATING].content == SIGMOID


_V3 = ModelType(
    class_name="DeepseekV3ForCausalLM",
    defaults={
        "vocabulary": 129280,
        "context": 4096,
        "hidden": 7168,
        "layers": 61,
        "heads": 128,
        "intermediate": 18432,
        "query_rank": 1536,
        "shared_count": 1,
        "expert_intermediate": 2048,
        "experts_scale": 2.5,
        "experts_normalized": True,
        "expert_groups": 8,
        "expert_groups_used": 4,
        "dense_first": 3,
    },
)

FAMILY = replace(
    DEEPSEEK_V2,
    name="deepseek_v3",
    is_of=_is_sigmoid,
    model_types={"deepseek_v3": _V3, "kimi_k2": _V3},
    blocks={"rope_interleaved": True, "router": "sigmoid", "router_correction": True},
    mtp=MtpForm(),
    unloaded=find_unlike_latent,
    differs=find_difference_of_scaling,
    names=with_mtp_lines(
        expert_lines(
            LATENT_DECODER,
            dense=True,
            more=ROUTED_LINES,
        ),
        MTP_LINES,
    ),
    keys=expert_keys(
        latent_keys(
            mtp_keys(DECODER_KEYS, "num_nextn_predict_layers"),
            activation("silu"),
            NO_BIASES,
            YARN_MULTIPLIER,
        ),
        "n_routed_experts",
        ONLY_NEIGHBORS,
        *ROUTED_KEYS,
        experts=256,
        used=8,
    ),
    standard=standard,
    checked=checking_experts(check_latent),
)  # fmt: skip
