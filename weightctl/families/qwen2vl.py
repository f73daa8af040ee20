"""The text models of Qwen2-VL and Qwen2.5-VL: a Qwen2 with multimodal RoPE.

Names and keys: transformers' `modeling_qwen2_5_vl.py` and `configuration_qwen2_5_vl.py`;
llama.cpp's `models/qwen2vl.cpp` and `conversion/qwenvl.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families import FAMILIES
from weightctl.families.family import ModelType
from weightctl.families.rope_sections import (
    find_empty_sections,
    section_keys,
    standard_text,
    with_default_rope,
)
from weightctl.families.windowed_layers import standard_windows as standard_qwen2

if TYPE_CHECKING:
    from collections.abc import Mapping

QWEN2 = FAMILIES["qwen2"].load()

_DEFAULTS = {
    "vocabulary": 152064,
    "context": 32768,
    "hidden": 8192,
    "intermediate": 29568,
    "layers": 80,
    "heads": 64,
    "kv_heads": 8,
    "norm_epsilon": 1e-5,
    "attention_bias": True,
    "rope_base": 1e6,
}


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    found = dict(with_default_rope(standard_text(document)))
    if not found.get("use_sliding_window"):
        found["sliding_window"] = None
    return standard_qwen2(found)


FAMILY = replace(
    QWEN2,
    name="qwen2vl",
    model_types={
        "qwen2_5_vl_text": ModelType(
            class_name="Qwen2_5_VLForConditionalGeneration", defaults=_DEFAULTS
        ),
        "qwen2_5_vl": ModelType(
            class_name="Qwen2_5_VLForConditionalGeneration", defaults=_DEFAULTS
        ),
        "qwen2_vl_text": ModelType(
            class_name="Qwen2VLForConditionalGeneration", defaults=_DEFAULTS
        ),
        "qwen2_vl": ModelType(class_name="Qwen2VLForConditionalGeneration", defaults=_DEFAULTS),
    },
    # The prefixes of the text model in multimodal checkpoints: in memory and on the Hub.
    other_prefixes=("model.language_model.",),
    beside=(r"visual\..+",),
    unloaded=find_empty_sections,
    keys=(*QWEN2.keys, *section_keys((16, 24, 24), interleaved=False)),
    standard=_standard,
)
