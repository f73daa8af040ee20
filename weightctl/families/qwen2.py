"""Qwen2 and Qwen2.5, as dense models: a llama whose queries, keys and values have biases.

Names and keys: transformers' `modeling_qwen2.py` and `configuration_qwen2.py`; llama.cpp's
`convert_hf_to_gguf.py` and `llama-model.cpp`. GGUF has the rows of its queries and keys as Hugging
Face does. llama.cpp has no window for it: it reads past the keys of one, and sees all positions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from weightctl.families.family import Family, ModelType, Name, layer_part, qkv_form
from weightctl.families.keys import Key, Present
from weightctl.families.kinds import FLAG
from weightctl.families.llama import FAMILY as LLAMA
from weightctl.families.rope_keys import standard as standard_rope
from weightctl.families.windowed_layers import FLAGS, WORDS, with_layer_types
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

__all__ = ["FAMILY", "KEYS", "check_fields", "standard"]

_part = partial(layer_part, "model.layers.{}.")

_NAMES = (
    Name(module="embedding", gguf="token_embd", hugging_face="model.embed_tokens"),
    _part("attention_norm", "attn_norm", "input_layernorm", is_float32=True),
    _part("attention.q", "attn_q", "self_attn.q_proj", bias="attention_bias"),
    _part("attention.k", "attn_k", "self_attn.k_proj", bias="attention_bias"),
    _part("attention.v", "attn_v", "self_attn.v_proj", bias="attention_bias"),
    _part("attention.o", "attn_output", "self_attn.o_proj"),
    _part("mlp_norm", "ffn_norm", "post_attention_layernorm", is_float32=True),
    _part("mlp.gate", "ffn_gate", "mlp.gate_proj"),
    _part("mlp.up", "ffn_up", "mlp.up_proj"),
    _part("mlp.down", "ffn_down", "mlp.down_proj"),
    Name(module="norm", gguf="output_norm", hugging_face="model.norm", is_float32=True),
    Name(module="output", gguf="output", hugging_face="lm_head", unless="tied"),
)  # fmt: skip

# Those of llama's lines that say something else here, or nothing.
_OTHERWISE = {
    "attention_bias", "attention_output_bias", "mlp_bias", "qk_norm", "experts",
    "windowed_layers", "rope_interleaved", "has_rope_factors",
}  # fmt: skip


def _uses_window(fields: Fields) -> bool:
    return fields["sliding_window"] is not None


# Those that Qwen3 has too.
KEYS = (
    *(key for key in LLAMA.keys if key.field not in _OTHERWISE),
    Key(field="mlp_bias", kind=FLAG, default=False, gguf_default=False),
    Key(field="rope_interleaved", kind=FLAG, default=False, gguf_default=False),
    Key(field="has_rope_factors", kind=FLAG, default=False, gguf_default=False),
    Key(field="uses_window", kind=FLAG, default=_uses_window, hugging_face="use_sliding_window",
        written=True),
    Key(field="windowed_layers", kind=WORDS, default=None, hugging_face="layer_types"),
    Key(field="windowed_layers", kind=FLAGS, gguf_default=None,
        gguf="{arch}.attention.sliding_window_pattern"),
)  # fmt: skip


def standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json as today's transformers understands it."""
    return with_layer_types(standard_rope(document), window=4096, first=28, layers=32)


def check_fields(fields: Fields) -> Fields:
    """Return the fields as `LlamaConfig` has them.

    Raises `ValueError` if they contradict each other.
    """
    windowed = fields["windowed_layers"]
    if windowed is not None and len(windowed) != fields["layers"]:
        raise ValueError(
            f"the model has {pluralize(fields['layers'], 'layer')}, but the config states "
            f"attention types for {pluralize(len(windowed), 'layer')}"
        )
    if windowed is not None and any(windowed) and fields["sliding_window"] is None:
        raise ValueError(
            "the config states layers with a sliding window, but not the size of the window"
        )
    return LLAMA.checked(fields)


FAMILY = Family(
    name="qwen2",
    model_types={
        "qwen2": ModelType(
            class_name="Qwen2ForCausalLM",
            defaults={
                "vocabulary": 151936,
                "context": 32768,
                "intermediate": 22016,
                "kv_heads": 32,
            },
        )
    },
    config="weightctl.families.llama:LlamaConfig",
    module="weightctl.nn.models.qwen2:Qwen2",
    prefix="model.",
    heads_fill_hidden=True,
    names=_NAMES,
    keys=(
        *KEYS,
        Key(field="qk_norm", kind=FLAG, default=False, gguf_default=False),
        Key(
            field="attention_bias",
            kind=FLAG,
            default=True,
            seen=Present("blk.0.attn_q.bias", "blk.0.attn_qkv.bias"),
        ),
        Key(field="attention_output_bias", kind=FLAG, default=False, gguf_default=False),
    ),
    fusions=(qkv_form(),),
    standard=standard,
    checked=check_fields,
)
