"""DeepSeek-V2: latent attention, and experts beside an MLP for all positions.

Names and keys: transformers' `modeling_deepseek_v2.py`; llama.cpp's `models/deepseek2.cpp` and
`conversion/deepseek.py`. Rotated pairs are neighbors in both conventions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import DECODER_KEYS, activation, with_keys
from weightctl.families.experts import (
    ROUTED_KEYS,
    ROUTER_GATING,
    SHARED_LINES,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import Choice, Exactly
from weightctl.families.latent import (
    LATENT_DECODER,
    YARN_MULTIPLIER,
    check_latent,
    find_difference_of_scaling,
    find_unlike_latent,
    joined_form,
    latent_keys,
)
from weightctl.families.rope_keys import standard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields
    from weightctl.weights.metadata import MetadataValue

# llama.cpp's number for routers that compute the sigmoid of each score.
SIGMOID = 2
GATING = "deepseek2.expert_gating_func"
_BY_GROUPS = "group_limited_greedy"

NO_BIASES = Key(
    field="attention_bias",
    kind=Exactly(False, "attention biases are not supported"),
    default=False,
    hugging_face="attention_bias",
)
NO_MLP_BIASES = Key(
    field="mlp_bias",
    kind=Exactly(False, "biases of MLPs are not supported"),
    default=False,
    hugging_face="mlp_bias",
)
# The router that llama.cpp assumes without a key.
SOFTMAX_GATING = replace(
    ROUTER_GATING, kind=Exactly(1, "other routers are not supported"), gguf_default=1
)


def _is_softmax(metadata: Mapping[str, MetadataValue]) -> bool:
    return GATING not in metadata or metadata[GATING].content != SIGMOID


def _find_difference(fields: Fields) -> str | None:
    if fields["expert_method"] == "groups":
        return "it ranks a group of experts by the best two of them in place of the best one"
    return find_difference_of_scaling(fields)


def _find_method(fields: Fields) -> str:
    return "greedy" if fields["expert_groups"] == 1 else "groups"


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with groups only if they are used: one group is as good as none."""
    found, method = dict(standard(document)), "topk_method"
    if found.get(method) == _BY_GROUPS and found.get("n_group") in (None, 1):  # a list has no hash
        found[method] = "greedy"
    if found.get(method, "greedy") == "greedy":
        found |= {"n_group": 1, "topk_group": 1}
    return found


FAMILY = Family(
    name="deepseek_v2",
    gguf="deepseek2",
    is_of=_is_softmax,
    model_types={
        "deepseek_v2": ModelType(
            class_name="DeepseekV2ForCausalLM",
            defaults={
                "vocabulary": 102400,
                "query_rank": 1536,
                "shared_count": 2,
                "expert_intermediate": 1407,
            },
        )
    },
    blocks={"rope_interleaved": True},
    unloaded=find_unlike_latent,
    differs=_find_difference,
    names=expert_lines(LATENT_DECODER, dense=True, more=SHARED_LINES),
    keys=expert_keys(
        latent_keys(DECODER_KEYS, activation("silu"), NO_BIASES, YARN_MULTIPLIER),
        "n_routed_experts",
        NO_MLP_BIASES,
        *with_keys(
            ROUTED_KEYS,
            SOFTMAX_GATING,
            # transformers does not read this key.
            Key(field="experts_normalized", default=False, gguf_default=False,
                kind=Exactly(False, "transformers does not normalize the shares of experts"),
                gguf="{arch}.expert_weights_norm", hugging_face="norm_topk_prob"),
        ),
        Key(field="expert_method", default="greedy", gguf_default=_find_method,
            kind=Choice({"greedy": "greedy", _BY_GROUPS: "groups"}),
            hugging_face="topk_method"),
        experts=64,
        used=6,
    ),
    fusions=(joined_form(), *expert_forms()),
    standard=_standard,
    checked=checking_experts(check_latent),
)  # fmt: skip
