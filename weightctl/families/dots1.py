"""dots.llm1: a Qwen3 whose experts have sigmoid scores, with a shared MLP beside them.

Names and keys: transformers' `modeling_dots1.py`; llama.cpp's `conversion/qwen.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families import FAMILIES
from weightctl.families.decoder_keys import BIASES, DECODER_KEYS, check_decoder, with_keys
from weightctl.families.experts import (
    ROUTED_KEYS,
    ROUTED_LINES,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
    find_shared_heads,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.layers import no_windows
from weightctl.families.rope_keys import standard
from weightctl.families.windowed_layers import with_layer_types

if TYPE_CHECKING:
    from collections.abc import Mapping

QWEN3 = FAMILIES["qwen3"].load()


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the type of attention of each layer; any window is used."""
    stated = {**standard(document), "use_sliding_window": True}
    return with_layer_types(stated, window=4096, first=62, layers=62)


FAMILY = Family(
    name="dots1",
    model_types={
        "dots1": ModelType(
            class_name="Dots1ForCausalLM",
            defaults={
                "vocabulary": 152064,
                "hidden": 4608,
                "layers": 62,
                "intermediate": 10944,
                "expert_intermediate": 1408,
            },
        )
    },
    blocks={"qk_norm": "head", "router": "sigmoid", "router_correction": True},
    heads_fill_hidden=True,
    unloaded=find_shared_heads,
    names=expert_lines(
        QWEN3.names,
        dense=True,
        more=ROUTED_LINES,
    ),
    keys=expert_keys(
        with_keys(DECODER_KEYS, *BIASES[:2], no_windows("dots1")),
        "n_routed_experts",
        *ROUTED_KEYS,
        experts=128,
        used=6,
    ),
    fusions=expert_forms(),
    standard=_standard,
    checked=checking_experts(check_decoder),
)
