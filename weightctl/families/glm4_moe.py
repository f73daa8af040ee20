"""GLM-4.5 to GLM-4.7: experts with sigmoid scores, after some dense layers.

Names and keys: transformers' `modeling_glm4_moe.py`; llama.cpp's `models/glm4-moe.cpp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    PARTIAL_ROPE,
    check_decoder,
    with_keys,
)
from weightctl.families.experts import (
    ROUTED_KEYS,
    ROUTED_LINES,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key, PresentAs
from weightctl.families.kinds import SIZE
from weightctl.families.layers import FlagMeaning
from weightctl.families.lines import DECODER, adapt
from weightctl.families.mtp import MTP_LINES, MtpForm, mtp_keys, with_mtp_lines
from weightctl.families.rope_keys import standard

if TYPE_CHECKING:
    from weightctl.families.keys import Fields

_HEAD = 128
_IF_NORMED = {"when": ("qk_norm",)}


def _head_dim(fields: Fields) -> int:
    """Return the size of a head, a usual one if the heads do not divide the hidden size.

    The quotient in transformers' default config would be 42; half of that cannot form pairs.
    """
    hidden, heads = int(fields["hidden"]), int(fields["heads"])
    return _HEAD if hidden % heads else hidden // heads


FAMILY = Family(
    name="glm4_moe",
    gguf="glm4moe",
    model_types={
        "glm4_moe": ModelType(
            class_name="Glm4MoeForCausalLM",
            defaults={
                "vocabulary": 151552,
                "context": 131072,
                "intermediate": 10944,
                "layers": 46,
                "heads": 96,
                "kv_heads": 8,
                "norm_epsilon": 1e-5,
                "rotated_share": 0.5,
                "expert_intermediate": 1408,
                "shared_count": 1,
                "dense_first": 1,
                "experts_normalized": True,
            },
        )
    },
    blocks={"router": "sigmoid", "router_correction": True},
    names=with_mtp_lines(
        expert_lines(
            adapt(
                DECODER,
                {
                    "attention.q_norm": _IF_NORMED,
                    "attention.k_norm": _IF_NORMED,
                    "mlp_norm": {"gguf": "blk.{}.post_attention_norm"},
                },
            ),
            dense=True,
            more=ROUTED_LINES,
        ),
        MTP_LINES,
    ),
    keys=expert_keys(
        with_keys(
            mtp_keys(DECODER_KEYS, "num_nextn_predict_layers"),
            Key(field="head_dim", kind=SIZE, default=_head_dim, gguf_default=_head_dim,
                gguf="{arch}.attention.key_length", hugging_face="head_dim", written=True),
            BIASES[0],
            PARTIAL_ROPE,
            Key(field="qk_norm", kind=FlagMeaning("head"), default=None, gguf_default=None,
                hugging_face="use_qk_norm",
                seen=PresentAs("blk.0.attn_q_norm.weight", "head")),
        ),
        "n_routed_experts",
        *ROUTED_KEYS,
        experts=128,
        used=8,
    ),
    fusions=expert_forms(),
    mtp=MtpForm(),
    standard=standard,
    checked=checking_experts(check_decoder),
)  # fmt: skip
