"""MiniMax-M2: experts with sigmoid scores; queries and keys normed over all heads together.

Names and keys: transformers' `modeling_minimax_m2.py`; llama.cpp's `conversion/minimax.py` and
`models/minimax-m2.cpp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import (
    DECODER_KEYS,
    PARTIAL_ROPE,
    check_decoder,
    with_keys,
)
from weightctl.families.experts import (
    ROUTER_GATING,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key, same
from weightctl.families.kinds import SIZE
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEAD_DIM = 128


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the `rotary_dim` of the first checkpoints in `rope_parameters`."""
    rotated, head_dim = document.get("rotary_dim"), document.get("head_dim", _HEAD_DIM)
    if type(rotated) is int and type(head_dim) is int and head_dim > 0:
        document = {"partial_rotary_factor": rotated / head_dim, **document}
    return standard(document)


FAMILY = Family(
    name="minimax_m2",
    gguf="minimax-m2",
    model_types={
        "minimax_m2": ModelType(
            class_name="MiniMaxM2ForCausalLM",
            defaults={
                "vocabulary": 200064,
                "context": 196608,
                "hidden": 3072,
                "intermediate": 1536,
                "layers": 62,
                "heads": 48,
                "kv_heads": 8,
                "head_dim": _HEAD_DIM,
                "rope_base": 5000000.0,
            },
        )
    },
    blocks={"qk_norm": "whole", "router": "sigmoid", "router_correction": True},
    names=expert_lines(
        adapt(
            DECODER,
            {
                "attention.q.whole": {},
                "attention.k.whole": {},
                "attention.q_norm.whole": {},
                "attention.k_norm.whole": {},
            },
        ),
        "block_sparse_moe.",
        parts=("w1", "w3", "w2"),
        more={"mlp.correction": "e_score_correction_bias"},
    ),
    keys=expert_keys(
        with_keys(DECODER_KEYS, PARTIAL_ROPE),
        "num_local_experts",
        ROUTER_GATING,
        # `intermediate_size` is the width of an expert.
        Key(field="expert_intermediate", kind=SIZE, default=same("intermediate"),
            gguf_default=same("intermediate"), gguf="{arch}.expert_feed_forward_length",
            written=True),
        experts=256,
        used=8,
    ),
    fusions=expert_forms(),
    older={"partial_rotary_factor": ""},
    standard=_standard,
    checked=checking_experts(check_decoder),
)  # fmt: skip
