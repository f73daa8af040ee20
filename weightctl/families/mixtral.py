"""Mixtral: a llama with a mixture of experts in each layer.

llama.cpp treats it as a llama that has an `expert_count`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.families.experts import checking_experts, expert_forms, expert_keys, expert_lines
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key, same
from weightctl.families.kinds import SIZE
from weightctl.families.llama import FAMILY as LLAMA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.metadata import MetadataValue


def _has_experts(metadata: Mapping[str, MetadataValue]) -> bool:
    count = metadata.get("llama.expert_count")
    return count is not None and count.content != 0


FAMILY = Family(
    name="mixtral",
    gguf="llama",
    is_of=_has_experts,
    model_types={
        "mixtral": ModelType(
            class_name="MixtralForCausalLM",
            defaults={
                "context": 131072,
                "intermediate": 14336,
                "kv_heads": 8,
                "norm_epsilon": 1e-5,
                "rope_base": 1e6,
            },
            fixed={"attention_bias": False, "attention_output_bias": False, "mlp_bias": False},
        )
    },
    names=expert_lines(LLAMA.names, "block_sparse_moe.", parts=("w1", "w3", "w2")),
    keys=expert_keys(
        LLAMA.keys,
        "num_local_experts",
        # `intermediate_size` is the width of an expert.
        Key(field="expert_intermediate", kind=SIZE, default=same("intermediate"),
            gguf_default=same("intermediate")),
        experts=8,
        used=2,
    ),
    beside=LLAMA.beside,
    fusions=(*LLAMA.fusions, *expert_forms()),
    standard=LLAMA.standard,
    checked=checking_experts(LLAMA.checked),
)  # fmt: skip
