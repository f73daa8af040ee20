"""GPT-NeoX and Pythia: RoPE on a part of each head, and queries, keys and values by head.

Names and keys: transformers' `modeling_gpt_neox.py`; llama.cpp's `models/gptneox.cpp`. GGUF has all
queries before all keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.changes import Rows
from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    LAYER_NORM,
    PARTIAL_ROPE,
    PLAIN_HEADS,
    activation,
    check_decoder,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import FLAG
from weightctl.families.lines import layer_lines, line
from weightctl.families.rope_keys import standard_of
from weightctl.families.row_orders import group_heads

if TYPE_CHECKING:
    from collections.abc import Sequence


def _order(config: Any) -> Sequence[int]:
    return group_heads(config.heads, (config.head_dim,) * 3)


# In Hugging Face's convention, each head has the rows of its queries, keys and values together.
BY_HEAD = Rows(_order, "queries, keys and values by head")

# The names in transformers before version 5.
_OLDER = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}


FAMILY = Family(
    name="gptneox",
    model_types={
        "gpt_neox": ModelType(
            class_name="GPTNeoXForCausalLM",
            defaults={
                "vocabulary": 50432,
                "hidden": 6144,
                "layers": 44,
                "heads": 64,
                "intermediate": 24576,
                "rotated_share": 0.25,
                "attention_bias": True,
                "attention_output_bias": True,
            },
        )
    },
    blocks={"norm": "layer", "gated": False, "fused_qkv": True, "mlp_bias": True},
    prefix="gpt_neox.",
    names=(
        line("embedding", hugging_face="gpt_neox.embed_in"),
        *layer_lines(
            "gpt_neox.layers.{}.",
            {
                "attention_norm": {"hugging_face": "input_layernorm", "bias": True},
                "attention.qkv": {
                    "hugging_face": "attention.query_key_value",
                    "change": BY_HEAD,
                },
                "attention.o": "attention.dense",
                "mlp_norm": {"hugging_face": "post_attention_layernorm", "bias": True},
                "mlp.up": "mlp.dense_h_to_4h",
                "mlp.down": "mlp.dense_4h_to_h",
            },
        ),
        line("norm", hugging_face="gpt_neox.final_layer_norm", bias=True),
        line("output", hugging_face="embed_out"),
    ),
    keys=with_keys(
        DECODER_KEYS,
        *PLAIN_HEADS,
        LAYER_NORM,
        PARTIAL_ROPE,
        activation("gelu"),
        *BIASES[:2],
        Key(field="parallel", kind=FLAG, default=True, gguf_default=True,
            gguf="{arch}.use_parallel_residual", hugging_face="use_parallel_residual",
            written=True),
        without=("value_dim",),
    ),
    older=_OLDER,
    standard=standard_of(_OLDER),
    checked=check_decoder,
)  # fmt: skip
