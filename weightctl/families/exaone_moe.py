"""K-EXAONE: experts with sigmoid scores, and RoPE only in layers with a sliding window.

Names and keys: transformers' `modeling_exaone_moe.py`; llama.cpp's `conversion/exaone.py` and
`models/exaone-moe.cpp`. The layer of multi-token prediction has an MLP in place of experts.
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
from weightctl.families.kinds import SIZE
from weightctl.families.layers import ONES, LayerChoice, from_layer, window_keys
from weightctl.families.lines import DECODER, adapt
from weightctl.families.mtp import MtpForm, mtp_keys, mtp_line, with_mtp_lines
from weightctl.families.rope_factors import LLAMA3_LINES
from weightctl.families.rope_keys import ROPE_FACTORS
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Mapping


_TYPES, _DENSE, _SPARSE = "mlp_layer_types", "dense", "sparse"
# All layers for MTP share these tensors, but in GGUF each has its own, so only one is supported.
_MTP_LINES = (
    mtp_line("projection", "nextn.eh_proj", "mtp.fc"),
    mtp_line("embedding_norm", "nextn.enorm", "mtp.pre_fc_norm_embedding"),
    mtp_line("hidden_norm", "nextn.hnorm", "mtp.pre_fc_norm_hidden"),
    mtp_line("norm", "nextn.shared_head_norm", "mtp.norm"),
)
# llama.cpp's converter does not state a window for this layer.
_MTP_VALUES = {"sparse_layers": False, "windowed_layers": False, "rotated_layers": False}


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the number of dense layers that `mlp_layer_types` begins with."""
    found = standard_windows(document)
    types = document.get(_TYPES)
    if not is_list(types):
        return found
    count = len(list(takewhile(lambda word: word == _DENSE, types)))
    return {**found, "first_k_dense_replace": count}


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
    names=with_mtp_lines(
        expert_lines(
            adapt(DECODER, {**LLAMA3_LINES, "attention.q_norm": {}, "attention.k_norm": {}}),
            dense=True,
            more={
                "mlp.correction": "e_score_correction_bias",
                **SHARED_LINES,
            },
        ),
        _MTP_LINES,
    ),
    keys=expert_keys(
        with_keys(
            mtp_keys(DECODER_KEYS, "num_nextn_predict_layers", most=1),
            ROPE_FACTORS,
            *window_keys(4, pattern=True)[1:],
            # Without a window, transformers and llama.cpp differ in which layers have RoPE.
            Key(field="sliding_window", kind=SIZE, default=4096,
                gguf="{arch}.attention.sliding_window", hugging_face="sliding_window"),
            Key(field="rotated_layers", kind=ONES, default=same("windowed_layers"),
                gguf_default=same("windowed_layers")),
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
    mtp=MtpForm(prefix="mtp.layers.{}.", values=_MTP_VALUES),
    standard=_standard,
    checked=checking_experts(check_decoder),
)  # fmt: skip
