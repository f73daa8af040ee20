"""The usual config keys of decoders in both naming conventions; a family states what differs.

Keys: llama.cpp's `llama-arch.cpp`, and those that most configs of transformers have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.families.config_keys import (
    IsAbsent,
    Key,
    Present,
    RowCount,
    quotient,
    same,
    with_keys,
)
from weightctl.families.config_values import (
    ACTIVATION,
    CAUSAL,
    EPSILON,
    FLAG,
    HEADS,
    LAYERS,
    SIZE,
    Exactly,
    OrNone,
    Real,
)
from weightctl.families.decoder import check_layers
from weightctl.families.rope import ROPE_KEYS, check_heads, scaling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.config_keys import Fields

SIZES = (
    Key(field="vocabulary", kind=SIZE, default=32000, gguf="{arch}.vocab_size",
        hugging_face="vocab_size", seen=RowCount("token_embd.weight")),
    Key(field="context", kind=SIZE, default=2048, gguf="{arch}.context_length",
        hugging_face="max_position_embeddings"),
    Key(field="hidden", kind=SIZE, default=4096, gguf="{arch}.embedding_length",
        hugging_face="hidden_size"),
    Key(field="layers", kind=LAYERS, default=32, gguf="{arch}.block_count",
        hugging_face="num_hidden_layers"),
    Key(field="heads", kind=HEADS, default=32, gguf="{arch}.attention.head_count",
        hugging_face="num_attention_heads"),
    Key(field="kv_heads", kind=HEADS, default=same("heads"), gguf_default=same("heads"),
        gguf="{arch}.attention.head_count_kv", hugging_face="num_key_value_heads",
        written=True),
    Key(field="head_dim", kind=SIZE, default=quotient("hidden", "heads"),
        gguf_default=quotient("hidden", "heads"), gguf="{arch}.attention.key_length",
        hugging_face="head_dim"),
    Key(field="value_dim", kind=SIZE, gguf_default=same("head_dim"),
        gguf="{arch}.attention.value_length"),
    Key(field="intermediate", kind=SIZE, default=11008, gguf="{arch}.feed_forward_length",
        hugging_face="intermediate_size"),
    Key(field="norm_epsilon", kind=EPSILON, default=1e-6,
        gguf="{arch}.attention.layer_norm_rms_epsilon", hugging_face="rms_norm_eps"),
)  # fmt: skip

BIASES = (
    Key(field="attention_bias", kind=FLAG, default=False, hugging_face="attention_bias",
        seen=Present("blk.0.attn_q.bias", "blk.0.attn_qkv.bias")),
    Key(field="attention_output_bias", kind=FLAG, default=False, hugging_face="attention_bias",
        seen=Present("blk.0.attn_output.bias")),
    Key(field="mlp_bias", kind=FLAG, default=False, hugging_face="mlp_bias",
        seen=Present("blk.0.ffn_up.bias")),
)  # fmt: skip

ATTENTION_BIAS = BIASES[0]
ATTENTION_BIASES = BIASES[:2]
NO_BIASES = Key(
    field="attention_bias",
    kind=Exactly(False, "attention biases are not supported"),
    default=False,
    hugging_face="attention_bias",
)
NO_MLP_BIASES = Key(
    field="mlp_bias",
    kind=Exactly(False, "biases of MLPs are not supported"),
    default=False,
    hugging_face="mlp_bias",
)

# For families whose norms are LayerNorms.
LAYER_NORM = Key(
    field="norm_epsilon",
    kind=EPSILON,
    default=1e-5,
    gguf="{arch}.attention.layer_norm_epsilon",
    hugging_face="layer_norm_eps",
)

# 0 means that there is no window.
SLIDING_WINDOW = Key(
    field="sliding_window",
    kind=OrNone(SIZE),
    default=None,
    gguf_default=None,
    gguf="{arch}.attention.sliding_window",
    hugging_face="sliding_window",
)


KQV_CLAMP = Key(
    field="query_clamp",
    kind=OrNone(Real(0, 1e9), 0.0),
    default=None,
    gguf_default=None,
    gguf="{arch}.attention.clamp_kqv",
    hugging_face="clip_qkv",
)


def activation(name: str, *spellings: str, key: str = "hidden_act") -> Key:
    """Return the key of an activation that llama.cpp assumes without a key.

    `spellings` are the names that transformers' own configs use, if there are several for it.
    """
    kind = ACTIVATION.preferring(*spellings)
    return Key(field="activation", kind=kind, default=name, gguf_default=name, hugging_face=key)


SILU = Key(
    field="activation",
    kind=Exactly("silu", "llama.cpp uses SiLU"),
    default="silu",
    gguf_default="silu",
    hugging_face="hidden_act",
)

NO_EXPERTS = Key(
    field="experts",
    kind=Exactly(0, "mixture of experts is not supported"),
    gguf_default=0,
    gguf="{arch}.expert_count",
)

# The keys of most decoders, without those of biases and RoPE.
KEYS_WITHOUT_ROPE = (
    *SIZES,
    Key(field="activation", kind=ACTIVATION, default="silu", gguf_default="silu",
        hugging_face="hidden_act"),
    Key(field="tied", kind=FLAG, default=False, hugging_face="tie_word_embeddings",
        seen=IsAbsent("output.weight")),
    NO_EXPERTS,
    Key(field="is_causal", kind=CAUSAL, default=True, gguf_default=True,
        gguf="{arch}.attention.causal", hugging_face="is_causal", written=False),
)  # fmt: skip

# The keys of most decoders, without those of biases.
DECODER_KEYS = (*KEYS_WITHOUT_ROPE, *ROPE_KEYS)

# For families in which each query head has its own KV head, and the heads together are as wide as
# the hidden size.
PLAIN_HEADS = (
    Key(field="kv_heads", kind=HEADS, default=same("heads"), gguf_default=same("heads")),
    Key(field="head_dim", kind=SIZE, default=quotient("hidden", "heads"),
        gguf_default=quotient("hidden", "heads")),
)  # fmt: skip

_FACTOR = Real(0, 1e9)
MULTIPLIERS: Mapping[str, Key] = {
    key.field: key
    for key in (
        Key(field="attention_scale", kind=_FACTOR, default=1.0, gguf_default=None,
            gguf="{arch}.attention.scale", hugging_face="attention_multiplier"),
        Key(field="embedding_scale", kind=_FACTOR, default=1.0, gguf_default=1.0,
            gguf="{arch}.embedding_scale", hugging_face="embedding_multiplier"),
        Key(field="residual_scale", kind=_FACTOR, default=1.0, gguf_default=1.0,
            gguf="{arch}.residual_scale", hugging_face="residual_multiplier"),
        Key(field="logit_divisor", kind=_FACTOR, default=1.0, gguf_default=1.0,
            gguf="{arch}.logit_scale", hugging_face="logits_scaling"),
        Key(field="logit_scale", kind=_FACTOR, default=1.0, gguf_default=1.0,
            gguf="{arch}.logit_scale", hugging_face="logit_scale"),
    )
}  # fmt: skip


def list_multipliers(*names: str) -> tuple[Key, ...]:
    """Return the keys of factors by their fields."""
    return tuple(MULTIPLIERS[name] for name in names)


# The keys of Gemma models without those of RoPE.
GEMMA_KEYS = with_keys(
    KEYS_WITHOUT_ROPE,
    Key(field="activation", kind=ACTIVATION.preferring("gelu_pytorch_tanh"), default="gelu_tanh",
        gguf_default="gelu_tanh", hugging_face="hidden_activation"),
    NO_BIASES,
    without=("experts", "tied"),
)  # fmt: skip


def rename_keys(keys: tuple[Key, ...], names: Mapping[str, str]) -> tuple[Key, ...]:
    """Return keys with other names in config.json, by their fields."""
    from dataclasses import replace

    return tuple(
        replace(key, hugging_face=names[key.field])
        if key.field in names and key.hugging_face
        else key
        for key in keys
    )


def check_decoder(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them.

    Raises `ValueError` if they contradict each other. A `sliding_window` of 0 becomes None.
    """
    check_layers(fields)
    made = dict(fields)
    if "rope_dimensions" in fields:
        check_heads(fields)
    if "scaling.kind" in fields:
        made["rope_scaling"] = scaling(fields)
    if "sliding_window" in fields:
        made["sliding_window"] = fields["sliding_window"] or None
    return made
