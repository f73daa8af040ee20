"""Qwen1.5 and Qwen2, mixtures of experts: a Qwen2 with a shared MLP beside the experts.

Names and keys: transformers' `modeling_qwen2_moe.py`; llama.cpp's `conversion/qwen.py` and
`models/qwen2moe.cpp`, which does not support layers without experts.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.decoder_keys import BIASES
from weightctl.families.experts import (
    EXPERT_WIDTH,
    SHARED_WIDTH,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import FLAG, Exactly
from weightctl.families.qwen2 import FAMILY as QWEN2

_DENSE = "models in which some layers have no experts are not supported"

FAMILY = Family(
    name="qwen2moe",
    model_types={
        "qwen2_moe": ModelType(
            class_name="Qwen2MoeForCausalLM",
            defaults={
                "vocabulary": 151936,
                "context": 32768,
                "hidden": 2048,
                "layers": 24,
                "heads": 16,
                "kv_heads": 16,
                "intermediate": 5632,
                "attention_bias": True,
            },
        )
    },
    blocks={"shared_gate": True},
    heads_fill_hidden=True,
    names=expert_lines(
        QWEN2.names,
        more={
            "mlp.shared.gate": "shared_expert.gate_proj",
            "mlp.shared.up": "shared_expert.up_proj",
            "mlp.shared.down": "shared_expert.down_proj",
            "mlp.shared_gate": "shared_expert_gate",
        },
    ),
    keys=expert_keys(
        QWEN2.keys,
        "num_experts",
        replace(BIASES[0], hugging_face="qkv_bias"),
        replace(EXPERT_WIDTH, default=1408),
        replace(SHARED_WIDTH, default=5632, hugging_face="shared_expert_intermediate_size"),
        Key(field="experts_normalized", kind=FLAG, default=False, gguf_default=False,
            hugging_face="norm_topk_prob"),
        Key(field="sparse_step", kind=Exactly(1, _DENSE), default=1,
            hugging_face="decoder_sparse_step"),
        Key(field="dense_layers", kind=Exactly([], _DENSE), default=None,
            hugging_face="mlp_only_layers"),
        experts=60,
        used=4,
    ),
    fusions=(*QWEN2.fusions, *expert_forms()),
    standard=QWEN2.standard,
    checked=checking_experts(QWEN2.checked),
)  # fmt: skip
