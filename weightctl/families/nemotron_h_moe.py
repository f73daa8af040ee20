"""Nemotron-H, mixtures of experts: layers with experts, without gates, in place of MLPs.

Names and keys: transformers' `modeling_nemotron_h.py`; llama.cpp's `models/nemotron-h.cpp` and
`conversion/nemotron.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import REQUIRED, Key, same
from weightctl.families.config_values import SIZE, Exactly, OrNone
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
from weightctl.families.family import ModelType, MtpForm
from weightctl.families.modules import WeightAxes
from weightctl.families.mtp import mtp_keys, mtp_line, with_mtp_lines
from weightctl.families.nemotron_h import (
    ATTENTION,
    DEFAULTS,
    EXPERTS,
    KEYS,
    LINES,
    check,
    find_most,
    has_experts,
    layer_keys,
    list_words,
    place_names,
    standard,
)
from weightctl.families.nemotron_h import FAMILY as NEMOTRON_H
from weightctl.families.usual_names import adapt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.config_keys import Fields
    from weightctl.families.modules import Name

_COUNT = "num_nextn_predict_layers"
_LAYER = "backbone.layers.{}."
_NO_BIASES = "llama.cpp has no biases in the experts of Nemotron-H"
# A layer for MTP has attention, in the first of two layers of Hugging Face's, and experts.
_FIRST, _SECOND = "mtp.layers.0.", "mtp.layers.1."
_IN_MTP = (
    mtp_line("projection", "nextn.eh_proj", f"{_FIRST}eh_proj"),
    mtp_line("embedding_norm", "nextn.enorm", f"{_FIRST}enorm"),
    mtp_line("hidden_norm", "nextn.hnorm", f"{_FIRST}hnorm"),
    mtp_line("norm", "nextn.shared_head_norm", f"{_SECOND}final_layernorm"),
)


def _find_width(fields: Fields) -> int:
    return find_most("layer_inner")(fields) // int(fields["experts_used"])


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in the form that the keys describe.

    Raises `ValueError` if a layer for MTP is not attention and experts.
    """
    words = list_words(document, "mtp_")
    if document.get(_COUNT) and words is not None and words != [ATTENTION, EXPERTS]:
        raise ValueError(
            "`mtp_layers_block_type` is not attention and then experts; other layers for "
            "multi-token prediction are not supported"
        )
    return standard(document)


def _list_lines() -> tuple[Name, ...]:
    names = adapt(
        expert_lines(
            LINES,
            "mixer.",
            more={
                **ROUTED_LINES,
                "mlp.latent_in": "fc1_latent_proj",
                "mlp.latent_out": "fc2_latent_proj",
            },
        ),
        {
            "mlp.experts.{expert}.gate": None,
            "mlp.experts.{expert}.up": {"axes": WeightAxes(("expert_inner",), ("expert_inputs",))},
            "mlp.experts.{expert}.down": {
                "axes": WeightAxes(("expert_inputs",), ("expert_inner",))
            },
            "mlp.shared.gate": None,
        },
    )
    return with_mtp_lines(place_names(names), _IN_MTP)


_NAMES = _list_lines()


def _find_mtp_changes() -> Mapping[str, Mapping[str, Any]]:
    """Return how the lines of a layer for MTP differ, by the part of the layer."""
    made: dict[str, dict[str, Any]] = {}
    for each in _NAMES:
        name = each.hugging_face or ""
        if name.startswith(_LAYER):
            part = each.module.removeprefix("layers.{}.")
            begin = _SECOND if part.startswith("mlp") else _FIRST
            made[part] = {"hugging_face": begin + name.removeprefix(_LAYER)}
    made["attention_norm"]["unless"] = None
    made["mlp_norm"]["gguf"] = "blk.{}.post_attention_norm"
    return made


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
        )
    },
    blocks={**NEMOTRON_H.blocks, "router": "sigmoid", "router_correction": True, "intermediate": 0},
    names=_NAMES,
    keys=(
        *expert_keys(
            # `intermediate_size` is the width of MLPs, which these models do not have.
            mtp_keys(
                tuple(key for key in KEYS if key.field not in {"intermediate", "mlp_bias"}),
                _COUNT,
                most=1,
            ),
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
            Key(field="expert_latent", kind=OrNone(SIZE), default=None, gguf_default=None,
                gguf="{arch}.moe_latent_size", hugging_face="moe_latent_size"),
            Key(field="expert_bias", kind=Exactly(False, _NO_BIASES), default=False,
                gguf_default=False, hugging_face="mlp_bias"),
            experts=8,
            used=2,
        ),
        *layer_keys(EXPERTS, "expert_intermediate"),
    ),
    mtp=MtpForm(
        changed=_find_mtp_changes(),
        values={"attention_layers": True, "ssm_layers": False, "mlp_layers": True,
                "layer_kv_heads": same("kv_heads"), "layer_inner": same("expert_intermediate")},
    ),
    standard=_standard,
    checked=checking_experts(check),
)  # fmt: skip
