"""The first version of Ling (Bailing): experts beside a shared MLP, and fused attention.

Queries, keys and values are one projection. Names and keys: `configuration_bailing_moe.py` and
`modeling_bailing_moe.py` in inclusionAI's checkpoints, since transformers does not have the type;
llama.cpp's `models/bailingmoe.cpp` and `conversion/bailingmoe.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    check_decoder,
    rename_keys,
    with_keys,
)
from weightctl.families.experts import (
    EXPERT_WIDTH,
    ROUTED_KEYS,
    SHARED_LINES,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import Fusion, qkv_form
from weightctl.families.keys import Key, same
from weightctl.families.kinds import Exactly, Real
from weightctl.families.lines import DECODER, adapt
from weightctl.families.llama import ROPE_ROWS
from weightctl.families.rope_keys import standard

if TYPE_CHECKING:
    from collections.abc import Mapping


_FIRST = "model.layers.{}.attention."
_REFUSED = {
    "norm_head": "normalizing the weights of the output matrix is not supported",
    "multi_gate": "several routers for different kinds of tokens are not supported",
    "use_sliding_window": "llama.cpp has no sliding windows for bailingmoe",
}


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    # 0 means as many KV heads as query heads.
    heads = document.get("num_key_value_heads") or None
    return standard({**document, "num_key_value_heads": heads})


FAMILY = Family(
    name="bailingmoe",
    model_types={
        "bailing_moe": ModelType(
            class_name="BailingMoeForCausalLM",
            defaults={
                "vocabulary": 30592,
                "context": 16384,
                "hidden": 1024,
                "layers": 24,
                "heads": 16,
                "norm_epsilon": 1e-5,
                "attention_output_bias": True,
                "experts_normalized": True,
            },
        )
    },
    names=expert_lines(
        adapt(
            DECODER,
            {
                "embedding": {"hugging_face": "model.word_embeddings"},
                **{role: {**change, "hugging_face": None} for role, change in ROPE_ROWS.items()},
                "attention.v": {"hugging_face": None},
                "attention.o": "attention.dense",
            },
        ),
        dense=True,
        more=SHARED_LINES,
    ),
    keys=expert_keys(
        with_keys(
            DECODER_KEYS,
            replace(BIASES[0], hugging_face="use_qkv_bias"),
            replace(BIASES[1], hugging_face="use_bias"),
            *(
                Key(field=name, kind=Exactly(False, reason), default=False, hugging_face=name)
                for name, reason in _REFUSED.items()
            ),
        ),
        "num_experts",
        *with_keys(
            rename_keys(ROUTED_KEYS, {"shared_count": "num_shared_experts"}),
            replace(EXPERT_WIDTH, default=same("intermediate"), written=True),
            Key(field="experts_scale", kind=Real(0, 1e9), default=1.0, gguf_default=1.0,
                gguf="{arch}.expert_weights_scale", written=True),
            without=("router_gating", "expert_groups", "expert_groups_used"),
        ),
        experts=16,
        used=2,
    ),
    fusions=(
        Fusion(convention="hugging_face", name=_FIRST + "query_key_value.{kind}",
               parts=tuple(f"layers.{{}}.attention.{part}" for part in "qkv")),
        qkv_form(),
        *expert_forms(),
    ),
    standard=_standard,
    checked=checking_experts(check_decoder),
)  # fmt: skip
