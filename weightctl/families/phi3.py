"""Phi-3, Phi-3.5 and Phi-4: a llama with fused projections.

Names and keys: transformers' `modeling_phi3.py` and `configuration_phi3.py`; llama.cpp's
`convert_hf_to_gguf.py` and `llama-model.cpp`. Both naming conventions have the rows of the gate
before those of what it gates, which GGUF calls `ffn_up`. llama.cpp reads past the window and sees
all positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from weightctl.families.family import Family, ModelType, Name, layer_part
from weightctl.families.keys import Key, Present
from weightctl.families.kinds import FLAG, SIZE, OrNone
from weightctl.families.llama import FAMILY as LLAMA
from weightctl.families.rope_factors import (
    long_factors,
    short_factors,
    with_long_factors,
    with_short_factors,
)
from weightctl.families.rope_keys import LONGROPE_KEYS, ROPE_KEYS, standard

if TYPE_CHECKING:
    from weightctl.families.rope_scaling import RopeScaling

__all__ = ["FAMILY", "Phi3Config"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phi3Config:
    """The sizes of a Phi-3.

    `rope_dimensions` is how many numbers of each head are rotated. A checkpoint that
    `has_rope_factors` has as tensors what divides the frequencies, as GGUF does; in Hugging Face's
    those are in `rope_scaling`. `sliding_window` is how many positions back, itself included, a
    position sees. A `tied` model has no output weight of its own.
    """

    vocabulary: int
    context: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    norm_epsilon: float
    rope_base: float
    rope_dimensions: int
    rope_scaling: RopeScaling | None = None
    has_rope_factors: bool = False
    sliding_window: int | None = None
    activation: str = "silu"
    tied: bool = False


_part = partial(layer_part, "model.layers.{}.")

_NAMES = (
    Name(module="embedding", gguf="token_embd", hugging_face="model.embed_tokens"),
    Name(module="long_rope_factors", gguf="rope_factors_long", hugging_face=None,
         when="has_rope_factors", is_float32=True, made=long_factors,
         add_fields=with_long_factors),
    Name(module="short_rope_factors", gguf="rope_factors_short", hugging_face=None,
         when="has_rope_factors", is_float32=True, made=short_factors,
         add_fields=with_short_factors),
    _part("attention_norm", "attn_norm", "input_layernorm", is_float32=True),
    _part("attention.qkv", "attn_qkv", "self_attn.qkv_proj"),
    _part("attention.o", "attn_output", "self_attn.o_proj"),
    _part("mlp_norm", "ffn_norm", "post_attention_layernorm", is_float32=True),
    _part("mlp.gate_up", "ffn_up", "mlp.gate_up_proj"),
    _part("mlp.down", "ffn_down", "mlp.down_proj"),
    Name(module="norm", gguf="output_norm", hugging_face="model.norm", is_float32=True),
    Name(module="output", gguf="output", hugging_face="lm_head", unless="tied"),
)  # fmt: skip

# Those of llama's lines that say something else here, or nothing.
_OTHERWISE = {
    "attention_bias", "attention_output_bias", "mlp_bias", "qk_norm", "experts", "sliding_window",
    "windowed_layers", *(key.field for key in ROPE_KEYS),
}  # fmt: skip

_KEYS = (
    *(key for key in LLAMA.keys if key.field not in _OTHERWISE),
    # Where it is missing, old versions of llama.cpp guess it.
    Key(field="sliding_window", kind=OrNone(SIZE), default=None, gguf_default=None,
        gguf="{arch}.attention.sliding_window", hugging_face="sliding_window", written=True),
    *(key for key in LONGROPE_KEYS if key.field not in {"rope_interleaved", "has_rope_factors"}),
    Key(field="has_rope_factors", kind=FLAG, default=False,
        seen=Present("rope_factors_long.weight")),
)  # fmt: skip


FAMILY = Family(
    name="phi3",
    model_types={
        "phi3": ModelType(
            class_name="Phi3ForCausalLM",
            defaults={
                "vocabulary": 32064,
                "context": 4096,
                "hidden": 3072,
                "intermediate": 8192,
                "norm_epsilon": 1e-5,
            },
        )
    },
    config="weightctl.families.phi3:Phi3Config",
    module="weightctl.nn.models.phi3:Phi3",
    prefix="model.",
    heads_fill_hidden=True,
    names=_NAMES,
    keys=_KEYS,
    standard=standard,
    checked=LLAMA.checked,
)
