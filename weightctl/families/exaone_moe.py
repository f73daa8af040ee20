"""K-EXAONE: experts with sigmoid scores, and RoPE only in layers with a sliding window.

Names and keys: transformers' `modeling_exaone_moe.py`; llama.cpp's `conversion/exaone.py` and
`models/exaone-moe.cpp`. Layers of multi-token prediction in checkpoints are left out, as in
transformers.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import (
    DECODER_KEYS,
    check_decoder,
    rename_keys,
    with_keys,
)
from weightctl.families.exaone4 import standard_windows
from weightctl.families.experts import (
    ROUTED_KEYS,
    SHARED_LINES,
    STATED_SHARED_WIDTH,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key, same
from weightctl.families.kinds import SIZE, Exactly
from weightctl.families.layers import ONES, LayerChoice, from_layer, window_keys
from weightctl.families.lines import DECODER, adapt
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

__all__ = ["FAMILY"]

_TYPES, _DENSE, _SPARSE = "mlp_layer_types", "dense", "sparse"
_FURTHER = "layers that predict further tokens are not supported"


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the number of dense layers that `mlp_layer_types` begins with."""
    found = standard_windows(document)
    types = document.get(_TYPES)
    if not is_list(types):
        return found
    count = len(list(takewhile(lambda word: word == _DENSE, types)))
    return {**found, "first_k_dense_replace": count}


def _find_no_output(fields: Fields) -> str | None:
    """Return why llama.cpp does not load a tied model, None for others."""
    return "its output matrix is tied to the embedding" if fields["tied"] else None


_DENSE_FIRST = from_layer("dense_first")

FAMILY = Family(
    name="exaone_moe",
    gguf="exaone-moe",
    model_types={
        "exaone_moe": ModelType(
            class_name="ExaoneMoeForCausalLM",
            defaults={
                "vocabulary": 102400,
                "intermediate": 16384,
                "norm_epsilon": 1e-5,
                "expert_intermediate": 1024,
                "shared_count": 1,
                "dense_first": 1,
                "experts_normalized": True,
                "experts_scale": 2.5,
            },
        )
    },
    blocks={"qk_norm": "head", "router": "sigmoid", "router_correction": True},
    keeps_window=True,
    unloaded=_find_no_output,
    names=expert_lines(
        adapt(DECODER, {"attention.q_norm": {}, "attention.k_norm": {}}),
        dense=True,
        more={
            "mlp.correction": "e_score_correction_bias",
            **SHARED_LINES,
        },
    ),
    keys=expert_keys(
        with_keys(
            DECODER_KEYS,
            *window_keys(4, pattern=True)[1:],
            # Without a window, transformers and llama.cpp differ in which layers have RoPE.
            Key(field="sliding_window", kind=SIZE, default=4096,
                gguf="{arch}.attention.sliding_window", hugging_face="sliding_window"),
            Key(field="rotated_layers", kind=ONES, default=same("windowed_layers"),
                gguf_default=same("windowed_layers")),
            Key(field="further_layers", kind=Exactly(0, _FURTHER), gguf_default=0,
                gguf="{arch}.nextn_predict_layers", written=False),
        ),
        "num_experts",
        *with_keys(
            rename_keys(ROUTED_KEYS, {"shared_count": "num_shared_experts"}),
            STATED_SHARED_WIDTH,
            Key(field="sparse_layers", kind=LayerChoice(_SPARSE, _DENSE), default=_DENSE_FIRST,
                gguf_default=_DENSE_FIRST, hugging_face=_TYPES, written=True),
        ),
        experts=64,
        used=8,
    ),
    fusions=expert_forms(),
    has_further_layers=True,
    standard=_standard,
    checked=checking_experts(check_decoder),
)  # fmt: skip
