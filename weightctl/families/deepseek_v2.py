"""DeepSeek-V2: latent attention, and experts beside an MLP for all positions.

Names and keys: transformers' `modeling_deepseek_v2.py`; llama.cpp's `models/deepseek2.cpp` and
`conversion/deepseek.py`. Rotated pairs are neighbors in both conventions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.families.decoder_keys import DECODER_KEYS, activation, with_keys
from weightctl.families.experts import (
    GROUP_KEYS,
    ROUTED_KEYS,
    ROUTER_GATING,
    SHARED_LINES,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import REQUIRED, Key
from weightctl.families.kinds import Choice, Exactly, OrNone
from weightctl.families.latent import (
    LATENT_DECODER,
    YARN_MULTIPLIER,
    check_latent,
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


def _find_unlike(fields: Fields) -> str | None:
    """Return why llama.cpp would compute something else for a model, None if it would not."""
    if fields["expert_method"] == "groups":
        return (
            "llama.cpp ranks a group of experts by its best two experts, but DeepSeek-V2 by its "
            "best one"
        )
    return find_unlike_latent(fields)


def _check(fields: Fields) -> Fields:
    made = dict(check_latent(fields))
    is_greedy = fields["expert_method"] == "greedy"
    for name in ("expert_groups", "expert_groups_used"):
        # Groups are not used if the best of all experts are selected.
        made[name] = 1 if is_greedy else fields[name] or 1
    return made


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
    unloaded=_find_unlike,
    names=expert_lines(LATENT_DECODER, dense=True, more=SHARED_LINES),
    keys=expert_keys(
        latent_keys(DECODER_KEYS, activation("silu"), NO_BIASES, YARN_MULTIPLIER),
        "n_routed_experts",
        NO_MLP_BIASES,
        Key(field="expert_method", default="greedy", gguf_default="greedy",
            kind=Choice({"greedy": "greedy", "group_limited_greedy": "groups"}),
            hugging_face="topk_method"),
        *with_keys(
            ROUTED_KEYS,
            SOFTMAX_GATING,
            # transformers does not read this key.
            Key(field="experts_normalized", default=False, gguf_default=False,
                kind=Exactly(False, "transformers does not normalize the shares of experts"),
                gguf="{arch}.expert_weights_norm", hugging_face="norm_topk_prob"),
            *(replace(key, kind=OrNone(key.kind), default=None, gguf="", gguf_default=REQUIRED)
              for key in GROUP_KEYS),
        ),
        experts=64,
        used=6,
    ),
    fusions=(joined_form(), *expert_forms()),
    standard=standard,
    checked=checking_experts(_check),
)  # fmt: skip
