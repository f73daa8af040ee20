"""llama, and what is built alike: Mistral, SmolLM, TinyLlama.

Names and keys: transformers' `modeling_llama.py` and `configuration_llama.py`; llama.cpp's
`convert_hf_to_gguf.py` and `llama-model.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from weightctl.families.changes import RopeRows
from weightctl.families.family import Family, ModelType, Name, layer_part, qkv_form
from weightctl.families.keys import IsAbsent, Key, Present, RowCount, quotient, same
from weightctl.families.kinds import (
    ACTIVATION,
    CAUSAL,
    EPSILON,
    FLAG,
    HEADS,
    LAYERS,
    SIZE,
    Exactly,
    OrNone,
)
from weightctl.families.rope_factors import rope_factors, with_llama3
from weightctl.families.rope_keys import ROPE_KEYS, standard
from weightctl.families.rotations import check_heads, scaling
from weightctl.families.windowed_layers import WORDS

if TYPE_CHECKING:
    from weightctl.families.keys import Fields
    from weightctl.families.rope_scaling import RopeScaling

__all__ = ["FAMILY", "LlamaConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """The sizes of a llama, and which of its variations it has.

    `rope_dimensions` is how many numbers of each head are rotated; `rope_interleaved` says that
    neighbors are, as in GGUF, not each half's with the other's, as in Hugging Face's checkpoints.
    `attention_bias` is that of queries, keys and values; `qk_norm` gives each head of queries and
    keys a norm. `sliding_window` is how many positions back, itself included, a position sees:
    in the layers that `windowed_layers` says, in all where it is None. A `tied` model has no
    output weight of its own.
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
    rope_interleaved: bool = False
    has_rope_factors: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    windowed_layers: tuple[bool, ...] | None = None
    activation: str = "silu"
    tied: bool = False

    def window(self, layer: int) -> int | None:
        """Return how many positions back those of a layer see; None, all."""
        windowed = self.windowed_layers
        return self.sliding_window if windowed is None or windowed[layer] else None


_part = partial(layer_part, "model.layers.{}.")

_NAMES = (
    Name(module="embedding", gguf="token_embd", hugging_face="model.embed_tokens"),
    Name(module="rope_factors", gguf="rope_freqs", hugging_face=None, when="has_rope_factors",
         is_float32=True, made=rope_factors, add_fields=with_llama3),
    _part("attention_norm", "attn_norm", "input_layernorm", is_float32=True),
    _part("attention.q", "attn_q", "self_attn.q_proj", bias="attention_bias",
          change=RopeRows("heads")),
    _part("attention.k", "attn_k", "self_attn.k_proj", bias="attention_bias",
          change=RopeRows("kv_heads")),
    _part("attention.v", "attn_v", "self_attn.v_proj", bias="attention_bias"),
    _part("attention.o", "attn_output", "self_attn.o_proj", bias="attention_output_bias"),
    _part("mlp_norm", "ffn_norm", "post_attention_layernorm", is_float32=True),
    _part("mlp.gate", "ffn_gate", "mlp.gate_proj", bias="mlp_bias"),
    _part("mlp.up", "ffn_up", "mlp.up_proj", bias="mlp_bias"),
    _part("mlp.down", "ffn_down", "mlp.down_proj", bias="mlp_bias"),
    Name(module="norm", gguf="output_norm", hugging_face="model.norm", is_float32=True),
    Name(module="output", gguf="output", hugging_face="lm_head", unless="tied"),
)  # fmt: skip


_KEYS = (
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
    Key(field="attention_bias", kind=FLAG, default=False, hugging_face="attention_bias",
        seen=Present("blk.0.attn_q.bias", "blk.0.attn_qkv.bias")),
    Key(field="attention_output_bias", kind=FLAG, default=False, hugging_face="attention_bias",
        seen=Present("blk.0.attn_output.bias")),
    Key(field="mlp_bias", kind=FLAG, default=False, hugging_face="mlp_bias",
        seen=Present("blk.0.ffn_up.bias")),
    # 0 is none, in GGUF.
    Key(field="sliding_window", kind=OrNone(SIZE), default=None, gguf_default=None,
        gguf="{arch}.attention.sliding_window", hugging_face="sliding_window"),
    # Of models that are built alike, some have these.
    Key(field="qk_norm", kind=FLAG, default=False, gguf_default=False),
    Key(field="windowed_layers", kind=WORDS, default=None, gguf_default=None),
    Key(field="activation", kind=ACTIVATION, default="silu", gguf_default="silu",
        hugging_face="hidden_act"),
    Key(field="tied", kind=FLAG, default=False, hugging_face="tie_word_embeddings",
        seen=IsAbsent("output.weight")),
    Key(field="experts", kind=Exactly(0, "mixture of experts is not supported"), gguf_default=0,
        gguf="{arch}.expert_count"),
    Key(field="is_causal", kind=CAUSAL, gguf_default=True, gguf="{arch}.attention.causal",
        written=False),
    *ROPE_KEYS,
)  # fmt: skip


def _check_fields(fields: Fields) -> Fields:
    check_heads(fields)
    return {
        **fields,
        "sliding_window": fields["sliding_window"] or None,
        "rope_scaling": scaling(fields),
    }


FAMILY = Family(
    name="llama",
    model_types={
        "llama": ModelType(class_name="LlamaForCausalLM", fixed={"sliding_window": None}),
        "mistral": ModelType(
            class_name="MistralForCausalLM",
            defaults={
                "context": 131072,
                "intermediate": 14336,
                "kv_heads": 8,
                "sliding_window": 4096,
            },
            fixed={"attention_bias": False, "attention_output_bias": False, "mlp_bias": False},
        ),
    },
    config="weightctl.families.llama:LlamaConfig",
    module="weightctl.nn.models.llama:Llama",
    prefix="model.",
    names=_NAMES,
    keys=_KEYS,
    fusions=(qkv_form(),),
    # What GGUFs of the first versions kept of the rotary embeddings.
    beside=(r"blk\.\d+\.attn_rot_embd\.weight",),
    standard=standard,
    checked=_check_fields,
)
