"""The text model of Qwen3-VL with experts: a Qwen3-MoE with multimodal RoPE.

Names and keys: transformers' `modeling_qwen3_vl_moe.py` and `configuration_qwen3_vl_moe.py`;
llama.cpp's `models/qwen3vlmoe.cpp` and `conversion/qwen3vl.py`. Checkpoints store the matrices of
all experts of a layer in one tensor. On the Hub, inputs are rows: `[experts, inputs, outputs]`.
transformers 5 saves `[experts, outputs, inputs]`. Both are read, as their shapes show, and the
Hub's form is written. transformers 5 also loads both, but takes square matrices for its own form.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families import FAMILIES
from weightctl.families.experts import expert_forms, expert_lines
from weightctl.families.family import ModelType
from weightctl.families.fusions import Fusion
from weightctl.families.qwen3moe import FAMILY as QWEN3MOE
from weightctl.families.qwen3moe import standard_experts
from weightctl.families.qwen3vl import VISION_KEYS, standard_vision_text
from weightctl.families.rope_sections import find_empty_sections, find_unrotated

if TYPE_CHECKING:
    from collections.abc import Mapping

QWEN3 = FAMILIES["qwen3"].load()

_EXPERTS, _EXPERT = "model.layers.{}.mlp.experts.", "layers.{}.mlp.experts.{expert}."
_DEFAULTS = {
    "vocabulary": 151936,
    "context": 128000,
    "hidden": 2048,
    "intermediate": 5632,
    "layers": 24,
    "heads": 16,
    "kv_heads": 16,
    "head_dim": 128,
    "expert_intermediate": 1408,
    "experts": 60,
    "experts_used": 4,
    "experts_normalized": True,
    "rope_base": 500000.0,
    "tied": True,
}


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return standard_experts(standard_vision_text(document))


FAMILY = replace(
    QWEN3MOE,
    name="qwen3vlmoe",
    model_types={
        "qwen3_vl_moe_text": ModelType(
            class_name="Qwen3VLMoeForConditionalGeneration", defaults=_DEFAULTS
        ),
        "qwen3_vl_moe": ModelType(
            class_name="Qwen3VLMoeForConditionalGeneration", defaults=_DEFAULTS
        ),
    },
    # The prefix of the text model in multimodal checkpoints, and the image encoder.
    other_prefixes=("model.language_model.",),
    beside=(r"visual\..+",),
    unloaded=find_empty_sections,
    differs=find_unrotated,
    names=expert_lines(QWEN3.names, parts=(None, None, None)),
    keys=(*QWEN3MOE.keys, *VISION_KEYS),
    fusions=(
        Fusion(convention="hugging_face", name=_EXPERTS + "gate_up_proj", of_experts=True,
               parts=(_EXPERT + "gate", _EXPERT + "up"), transposed=True, either_way=True),
        Fusion(convention="hugging_face", name=_EXPERTS + "down_proj", of_experts=True,
               parts=(_EXPERT + "down",), transposed=True, either_way=True),
        *(each for each in expert_forms() if each.convention == "gguf"),
        *QWEN3.fusions,
    ),
    standard=_standard,
)  # fmt: skip
