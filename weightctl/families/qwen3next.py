"""Qwen3-Next: gated delta nets in most layers, attention with a gate, and many small experts.

Names and keys: transformers' `modeling_qwen3_next.py` and `configuration_qwen3_next.py`;
llama.cpp's `models/qwen3next.cpp` and `conversion/qwen.py`. Layers of multi-token prediction in
checkpoints are left out, as in transformers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.delta import (
    BLOCKS,
    DELTA_DEFAULTS,
    DELTA_KEYS,
    DELTA_MTP,
    DELTA_MTP_LINES,
    GATED_QUERIES,
    SHARED_EXPERT_LINES,
    check_delta,
    delta_lines,
    find_unlike_delta,
    standard_delta,
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
from weightctl.families.fusions import Fusion
from weightctl.families.keys import Key
from weightctl.families.kinds import FLAG, Exactly
from weightctl.families.mtp import mtp_keys, with_mtp_lines
from weightctl.families.row_orders import group_heads

if TYPE_CHECKING:
    from collections.abc import Sequence

_DENSE = "models in which some layers have no experts are not supported"
_DELTA = "layers.{}.delta."
_FUSED: dict[str, Any] = {"gguf": None, "hugging_face": None}


def _by_key_head(config: Any) -> Sequence[int]:
    group = config.delta_heads // config.delta_key_heads
    keys, values = config.delta_key_size, config.delta_value_size * group
    return group_heads(config.delta_key_heads, (keys, keys, values, values))


def _by_group(config: Any) -> Sequence[int]:
    group = config.delta_heads // config.delta_key_heads
    return group_heads(config.delta_key_heads, (group, group))


# The rows of a key head stand together: in Hugging Face's convention those of its query, key,
# values and gates, and in both conventions its shares and fadings.
_FORMS = (
    Fusion(convention="hugging_face", name="model.layers.{}.linear_attn.in_proj_qkvz.{kind}",
           parts=(_DELTA + "qkv", _DELTA + "gate"), order=_by_key_head),
    Fusion(convention="hugging_face", name="model.layers.{}.linear_attn.in_proj_ba.{kind}",
           parts=(_DELTA + "beta", _DELTA + "alpha"), order=_by_group),
    Fusion(convention="gguf", name="blk.{}.ssm_ba.{kind}",
           parts=(_DELTA + "beta", _DELTA + "alpha"), order=_by_group),
    # The first GGUF files have the rows in Hugging Face's order.
    Fusion(convention="gguf", name="blk.{}.ssm_in.{kind}",
           parts=(_DELTA + "qkv", _DELTA + "gate"), order=_by_key_head),
)  # fmt: skip

FAMILY = Family(
    name="qwen3next",
    model_types={
        "qwen3_next": ModelType(
            class_name="Qwen3NextForCausalLM",
            defaults={
                **DELTA_DEFAULTS,
                "vocabulary": 151936,
                "hidden": 2048,
                "layers": 48,
                "kv_heads": 2,
                "intermediate": 5632,
            },
        )
    },
    blocks={**BLOCKS, "shared_gate": True},
    names=with_mtp_lines(
        expert_lines(
            delta_lines(
                {
                    "delta.qkv": {"hugging_face": None},
                    "delta.gate": {"hugging_face": None},
                    "delta.beta": _FUSED,
                    "delta.alpha": _FUSED,
                }
            ),
            more=SHARED_EXPERT_LINES,
        ),
        DELTA_MTP_LINES,
    ),
    mtp=DELTA_MTP,
    unloaded=find_unlike_delta,
    keys=expert_keys(
        # config.json does not state the number of layers for MTP.
        mtp_keys(DELTA_KEYS, "", most=1),
        "num_experts",
        replace(EXPERT_WIDTH, default=512),
        replace(SHARED_WIDTH, default=512, hugging_face="shared_expert_intermediate_size"),
        # llama.cpp always normalizes.
        Key(field="experts_normalized", kind=FLAG, default=True, gguf_default=True,
            hugging_face="norm_topk_prob"),
        Key(field="sparse_step", kind=Exactly(1, _DENSE), default=1,
            hugging_face="decoder_sparse_step"),
        Key(field="dense_layers", kind=Exactly([], _DENSE), default=None,
            hugging_face="mlp_only_layers"),
        experts=512,
        used=10,
    ),
    fusions=(*GATED_QUERIES, *_FORMS, *expert_forms()),
    standard=standard_delta,
    checked=checking_experts(check_delta),
)  # fmt: skip
