"""Granite, mixtures of experts: a Granite whose experts are two tensors per layer.

Names and keys: transformers' `modeling_granitemoe.py`; llama.cpp's `conversion/granite.py`.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.experts import checking_experts, expert_keys, expert_lines
from weightctl.families.family import ModelType
from weightctl.families.fusions import Fusion
from weightctl.families.granite import FAMILY as GRANITE
from weightctl.families.keys import Key, same
from weightctl.families.kinds import SIZE

_MOE = "block_sparse_moe."

FAMILY = replace(
    GRANITE,
    name="granitemoe",
    model_types={
        "granitemoe": ModelType(
            class_name="GraniteMoeForCausalLM", fixed={"mlp_bias": False}
        )
    },
    names=expert_lines(
        GRANITE.names,
        _MOE,
        parts=(None, None, None),
        more={
            "mlp.router": "router.layer",
            "mlp.experts.{expert}.down": "output_linear",
        },
    ),
    keys=expert_keys(
        GRANITE.keys,
        "num_local_experts",
        # `intermediate_size` is the width of an expert.
        Key(field="expert_intermediate", kind=SIZE, default=same("intermediate"),
            gguf_default=same("intermediate")),
        experts=8,
        used=2,
    ),
    fusions=(
        *GRANITE.fusions,
        Fusion(
            convention="hugging_face",
            name=f"model.layers.{{}}.{_MOE}input_linear.{{kind}}",
            parts=tuple(f"layers.{{}}.mlp.experts.{{expert}}.{part}" for part in ("gate", "up")),
            of_experts=True,
        ),
    ),
    checked=checking_experts(GRANITE.checked),
)  # fmt: skip
