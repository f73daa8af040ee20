"""Nemotron-H, mixtures of experts: layers with experts, without gates, in place of MLPs.

Names and keys: transformers' `modeling_nemotron_h.py`; llama.cpp's `models/nemotron-h.cpp` and
`conversion/nemotron.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.families.experts import (
    EXPERT_WIDTH,
    GROUP_KEYS,
    ROUTED_KEYS,
    ROUTED_LINES,
    ROUTER_GATING,
    SHARED_COUNT_KEYS,
    SHARED_WIDTH,
    checking_experts,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import ModelType
from weightctl.families.keys import REQUIRED, Key
from weightctl.families.kinds import Exactly, OrNone
from weightctl.families.lines import adapt
from weightctl.families.nemotron_h import (
    DEFAULTS,
    EXPERTS,
    KEYS,
    LINES,
    check,
    find_most,
    has_experts,
    layer_keys,
    place_names,
)
from weightctl.families.nemotron_h import FAMILY as NEMOTRON_H

if TYPE_CHECKING:
    from weightctl.families.keys import Fields

__all__ = ["FAMILY"]

_LATENT = "experts of latent vectors are not supported"


def _find_width(fields: Fields) -> int:
    return find_most("layer_inner")(fields) // int(fields["experts_used"])


_GIVEN = {key.field: key for key in ROUTED_KEYS}

FAMILY = replace(
    NEMOTRON_H,
    name="nemotron_h_moe",
    is_of_config=has_experts,
    model_types={
        "nemotron_h": ModelType(
            class_name="NemotronHForCausalLM",
            defaults={
                **DEFAULTS,
                "expert_intermediate": 7688,
                "shared_intermediate": 7688,
                "shared_count": 1,
                "experts_normalized": True,
            },
            fixed={"mlp_bias": False},
        )
    },
    blocks={**NEMOTRON_H.blocks, "router": "sigmoid", "router_correction": True, "intermediate": 0},
    names=place_names(
        adapt(
            expert_lines(LINES, "mixer.", more=ROUTED_LINES),
            {"mlp.experts.{expert}.gate": None, "mlp.shared.gate": None},
        )
    ),
    keys=(
        *expert_keys(
            # `intermediate_size` is the width of MLPs, which these models do not have.
            tuple(key for key in KEYS if key.field != "intermediate"),
            "n_routed_experts",
            replace(EXPERT_WIDTH, gguf_default=_find_width),
            ROUTER_GATING,
            _GIVEN["experts_normalized"],
            _GIVEN["experts_scale"],
            *GROUP_KEYS,
            SHARED_COUNT_KEYS[0],
            replace(
                SHARED_WIDTH,
                gguf_default=REQUIRED,
                hugging_face="moe_shared_expert_intermediate_size",
            ),
            Key(field="expert_latent", kind=OrNone(Exactly(0, _LATENT)), default=None,
                gguf_default=None,
                gguf="{arch}.moe_latent_size", hugging_face="moe_latent_size", written=False),
            experts=8,
            used=2,
        ),
        *layer_keys(EXPERTS, "expert_intermediate"),
    ),
    checked=checking_experts(check),
)  # fmt: skip
