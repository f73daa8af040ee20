"""Qwen3, mixtures of experts: a dense Qwen3 with many narrow experts in each layer.

Names and keys: transformers' `modeling_qwen3_moe.py` and `configuration_qwen3_moe.py`; llama.cpp's
`conversion/qwen.py` and `models/qwen3moe.cpp`, which does not support layers without experts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families import FAMILIES
from weightctl.families.experts import (
    EXPERT_WIDTH,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import FLAG, Exactly
from weightctl.families.multimodal import in_multimodal
from weightctl.families.rope_keys import standard as standard_rope
from weightctl.families.windowed_layers import WORDS

if TYPE_CHECKING:
    from collections.abc import Mapping

QWEN3 = FAMILIES["qwen3"].load()


_DENSE = "models in which some layers have no experts are not supported"

_KEYS = expert_keys(
    QWEN3.keys,
    "num_experts",
    replace(EXPERT_WIDTH, default=768),
    # llama.cpp always normalizes.
    Key(field="experts_normalized", kind=FLAG, default=False, gguf_default=True,
        hugging_face="norm_topk_prob"),
    Key(field="sparse_step", kind=Exactly(1, _DENSE), default=1,
        hugging_face="decoder_sparse_step"),
    Key(field="dense_layers", kind=Exactly([], _DENSE), default=None,
        hugging_face="mlp_only_layers"),
    # All layers have the window, or none.
    Key(field="windowed_layers", kind=WORDS, default=None, gguf_default=None),
    experts=128,
    used=8,
)  # fmt: skip


def standard_experts(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the keys of transformers 5 under the names of older versions."""
    found = {"sliding_window": 4096, **standard_rope(document)}
    if found.get("num_experts") is None:
        found["num_experts"] = found.get("num_local_experts")
    if not found.get("use_sliding_window"):
        found["sliding_window"] = None
    return found


FAMILY = in_multimodal(
    Family(
        name="qwen3moe",
        model_types={
            "qwen3_moe": ModelType(
                class_name="Qwen3MoeForCausalLM",
                defaults={
                    "vocabulary": 151936,
                    "context": 32768,
                    "hidden": 2048,
                    "layers": 24,
                    "kv_heads": 4,
                    "intermediate": 6144,
                },
            )
        },
        blocks=QWEN3.blocks,
        names=expert_lines(QWEN3.names),
        keys=_KEYS,
        fusions=(*QWEN3.fusions, *expert_forms()),
        standard=standard_experts,
        checked=checking_experts(QWEN3.checked),
    ),
    {"internvl": "InternVLForConditionalGeneration"},
)
