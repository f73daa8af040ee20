"""MPT: ALiBi positions, LayerNorms without bias, and no other biases.

Names and keys: transformers' `modeling_mpt.py`; llama.cpp's `conversion/mpt.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.families.decoder_keys import (
    DECODER_KEYS,
    KQV_CLAMP,
    LAYER_NORM,
    PLAIN_HEADS,
    activation,
    check_decoder,
    rename_keys,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import SIZE, Exactly, WholeReal
from weightctl.families.lines import layer_lines, line
from weightctl.families.rope_keys import ROPE_KEYS

if TYPE_CHECKING:
    from weightctl.families.keys import Fields


def _inner(fields: Fields) -> int:
    return int(fields["hidden"] * fields["expansion"])


def _expansion(fields: Fields) -> int:
    return int(fields["intermediate"] // fields["hidden"])


_KEYS = with_keys(
    DECODER_KEYS,
    *PLAIN_HEADS,
    replace(LAYER_NORM, hugging_face="layer_norm_epsilon"),
    replace(KQV_CLAMP, hugging_face="attn_config.clip_qkv"),
    activation("gelu", key=""),
    Key(field="alibi_bias", kind=WholeReal(1, 1 << 16), default=8, gguf_default=8,
        gguf="{arch}.attention.max_alibi_bias", hugging_face="attn_config.alibi_bias_max"),
    Key(field="uses_alibi", kind=Exactly(True, "learned positions are not supported"),
        default=True, hugging_face="attn_config.alibi"),
    Key(field="has_qk_norms", default=False, hugging_face="attn_config.qk_ln",
        kind=Exactly(False, "norms of queries and keys are not supported")),
    without=("value_dim", "intermediate", *(key.field for key in ROPE_KEYS)),
)  # fmt: skip
# The key of each convention is computed from that of the other.
_INNER_KEYS = (
    Key(field="expansion", kind=SIZE, default=4, hugging_face="expansion_ratio"),
    Key(field="intermediate", kind=SIZE, default=_inner, gguf="{arch}.feed_forward_length"),
    Key(field="expansion", kind=SIZE, gguf_default=_expansion),
)

FAMILY = Family(
    name="mpt",
    model_types={
        "mpt": ModelType(
            class_name="MptForCausalLM",
            defaults={
                "vocabulary": 50368,
                "hidden": 2048,
                "layers": 24,
                "heads": 16,
                "tied": True,
            },
        )
    },
    blocks={
        "norm": "layer",
        "norm_bias": False,
        "position": "alibi",
        "gated": False,
        "fused_qkv": True,
    },
    prefix="transformer.",
    names=(
        line("embedding", hugging_face="transformer.wte"),
        *layer_lines(
            "transformer.blocks.{}.",
            {
                "attention_norm": "norm_1",
                "attention.qkv": "attn.Wqkv",
                "attention.o": "attn.out_proj",
                "mlp_norm": "norm_2",
                "mlp.up": "ffn.up_proj",
                "mlp.down": "ffn.down_proj",
            },
        ),
        line("norm", hugging_face="transformer.norm_f"),
        line("output"),
    ),
    keys=rename_keys(
        (*_KEYS, *_INNER_KEYS),
        {"context": "max_seq_len", "hidden": "d_model", "layers": "n_layers", "heads": "n_heads"},
    ),
    checked=check_decoder,
)
