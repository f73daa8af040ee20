"""gemma2, and what gemma3 has in common with it.

Names and keys: transformers' `modeling_gemma2.py` and `configuration_gemma2.py`; llama.cpp's
`conversion/gemma.py` and `src/models/gemma2.cpp`.

What GGUF has no key for is as llama.cpp takes it: the output is the embedding, the activation is
GELU by its tanh, there are soft caps, and the scale of queries follows from their length, or from
the hidden size in a model of as many layers as the one of 27 billion parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from weightctl.families.changes import PLUS_ONE
from weightctl.families.family import Family, ModelType, Name, layer_part, qkv_form
from weightctl.families.keys import Key, RowCount, quotient, same
from weightctl.families.kinds import (
    ACTIVATION,
    CAUSAL,
    EPSILON,
    FLAG,
    HEADS,
    LAYERS,
    SIZE,
    Choice,
    Exactly,
    Real,
)
from weightctl.families.rope_keys import ROPE_KEYS, standard
from weightctl.families.rotations import check_heads, scaling
from weightctl.families.windowed_layers import WORDS
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.families.keys import Fields
    from weightctl.families.rope_scaling import RopeScaling

__all__ = [
    "EMBEDDING",
    "FAMILY",
    "LAYER",
    "NORM",
    "ROPE",
    "SCALING",
    "SIZES",
    "SOFTCAP",
    "Gemma2Config",
    "consistent",
    "local_period",
    "mark_windowed_layers",
    "norm_part",
    "query_scalar",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma2Config:
    """The sizes of a gemma2, and which of its variations it has.

    `norm_offset` is what the weights of norms are stored less: 1 in Hugging Face's checkpoints, 0
    in GGUF. Attention divides its scores by the root of `query_scalar`, and `attention_softcap`
    bounds them, as `softcap` does the logits. `sliding_window` is how many positions back, itself
    included, a position sees in the layers that `windowed_layers` says.
    `rope_dimensions` is how many numbers of each head are rotated. A `tied` model has no output
    weight of its own.
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
    query_scalar: int
    sliding_window: int
    windowed_layers: tuple[bool, ...]
    rope_base: float
    rope_dimensions: int
    rope_scaling: RopeScaling | None = None
    norm_offset: float = 1.0
    attention_softcap: float | None = None
    softcap: float | None = None
    activation: str = "gelu_tanh"
    tied: bool = True


_LAYERS_OF_27B, _PERIOD = 46, 2
SOFTCAP = Real(0, 1e9)

_part = partial(layer_part, "model.layers.{}.")
norm_part = partial(_part, is_float32=True, change=PLUS_ONE)

EMBEDDING = Name(module="embedding", gguf="token_embd", hugging_face="model.embed_tokens")
LAYER = (
    norm_part("attention_norm", "attn_norm", "input_layernorm"),
    _part("attention.q", "attn_q", "self_attn.q_proj"),
    _part("attention.k", "attn_k", "self_attn.k_proj"),
    _part("attention.v", "attn_v", "self_attn.v_proj"),
    _part("attention.o", "attn_output", "self_attn.o_proj"),
    norm_part("post_attention_norm", "post_attention_norm", "post_attention_layernorm"),
    norm_part("mlp_norm", "ffn_norm", "pre_feedforward_layernorm"),
    _part("mlp.gate", "ffn_gate", "mlp.gate_proj"),
    _part("mlp.up", "ffn_up", "mlp.up_proj"),
    _part("mlp.down", "ffn_down", "mlp.down_proj"),
    norm_part("post_mlp_norm", "post_ffw_norm", "post_feedforward_layernorm"),
)
NORM = Name(
    module="norm", gguf="output_norm", hugging_face="model.norm", is_float32=True, change=PLUS_ONE
)


def query_scalar(layers_of_27b: int) -> Callable[[Fields], int]:
    """Return the default of the value whose root divides the attention scores in llama.cpp."""

    def scalar(fields: Fields) -> int:
        if fields["layers"] == layers_of_27b:
            return int(fields["hidden"] // fields["heads"])
        return int(fields["head_dim"])

    return scalar


def mark_windowed_layers(layers: int, period: int) -> tuple[bool, ...]:
    """Return whether each layer has a window; the last of each `period` sees all positions."""
    return tuple((number + 1) % period != 0 for number in range(layers))


def local_period(usual: int) -> Callable[[Fields], int]:
    """Return what gives the period of the layers with a window, the usual one where any would do.

    A list that has none gives one that does not lead to it.
    """

    def period(fields: Fields) -> int:
        found = fields.get("windowed_layers")
        if found is None or (all(found) and len(found) < usual):
            return usual
        return (*found, False).index(False) + 1

    return period


def _usually_windowed(fields: Fields) -> tuple[bool, ...]:
    return mark_windowed_layers(fields["layers"], _PERIOD)


def _mark_layers(fields: Fields) -> tuple[bool, ...]:
    return mark_windowed_layers(fields["layers"], fields["local_period"])


def _local_period(fields: Fields) -> int:
    if not any(fields.get("windowed_layers", (True,))):
        raise ValueError("gives no layer a sliding window, which llama.cpp does not support")
    return local_period(_PERIOD)(fields)


# The vocabulary's size is that of the embedding, which may have more rows than there are tokens.
SIZES = (
    Key(field="vocabulary", kind=SIZE, default=256000, gguf="{arch}.vocab_size",
        hugging_face="vocab_size", seen=RowCount("token_embd.weight")),
    Key(field="context", kind=SIZE, default=8192, gguf="{arch}.context_length",
        hugging_face="max_position_embeddings"),
    Key(field="hidden", kind=SIZE, default=2304, gguf="{arch}.embedding_length",
        hugging_face="hidden_size"),
    Key(field="layers", kind=LAYERS, default=26, gguf="{arch}.block_count",
        hugging_face="num_hidden_layers"),
    Key(field="heads", kind=HEADS, default=8, gguf="{arch}.attention.head_count",
        hugging_face="num_attention_heads"),
    Key(field="kv_heads", kind=HEADS, default=4, gguf_default=same("heads"),
        gguf="{arch}.attention.head_count_kv", hugging_face="num_key_value_heads"),
    Key(field="head_dim", kind=SIZE, default=256, gguf_default=quotient("hidden", "heads"),
        gguf="{arch}.attention.key_length", hugging_face="head_dim"),
    Key(field="value_dim", kind=SIZE, gguf_default=same("head_dim"),
        gguf="{arch}.attention.value_length"),
    Key(field="intermediate", kind=SIZE, default=9216, gguf="{arch}.feed_forward_length",
        hugging_face="intermediate_size"),
    Key(field="norm_epsilon", kind=EPSILON, default=1e-6,
        gguf="{arch}.attention.layer_norm_rms_epsilon", hugging_face="rms_norm_eps"),
    # GGUF has the weights of norms as they multiply.
    Key(field="norm_offset", kind=Real(0, 1, is_closed=True), default=1.0, gguf_default=0.0),
    Key(field="activation", kind=ACTIVATION.preferring("gelu_pytorch_tanh"), default="gelu_tanh",
        gguf_default="gelu_tanh", hugging_face="hidden_activation"),
    Key(field="has_biases", kind=Exactly(False, "attention biases are not supported"),
        default=False, hugging_face="attention_bias"),
    Key(field="sees_ahead", kind=Exactly(False, "attention to later tokens is not supported"),
        default=False, hugging_face="use_bidirectional_attention"),
    Key(field="is_causal", kind=CAUSAL, gguf_default=True, gguf="{arch}.attention.causal",
        written=False),
)  # fmt: skip

# Those of gemma are never interleaved, nor told by a tensor. A model scaled as llama3 is has no
# form in GGUF, where no gemma has that tensor.
ROPE = tuple(
    key
    for key in ROPE_KEYS
    if key.field not in {"rope_interleaved", "has_rope_factors", "scaling.kind"}
)
SCALING = (
    Key(field="scaling.kind", default=None,
        kind=Choice({"default": None, "linear": "linear", "yarn": "yarn"}),
        hugging_face="rope_parameters.rope_type"),
    *(key for key in ROPE_KEYS if key.field == "scaling.kind" and key.gguf),
)  # fmt: skip

_KEYS = (
    *SIZES,
    Key(field="query_scalar", kind=SIZE, default=256, gguf_default=query_scalar(_LAYERS_OF_27B),
        hugging_face="query_pre_attn_scalar"),
    Key(field="sliding_window", kind=SIZE, default=4096, gguf_default=4096,
        gguf="{arch}.attention.sliding_window", hugging_face="sliding_window"),
    Key(field="local_period", kind=SIZE, gguf_default=_local_period,
        gguf="{arch}.attention.sliding_window_pattern"),
    Key(field="windowed_layers", kind=WORDS, default=_usually_windowed, gguf_default=_mark_layers,
        hugging_face="layer_types"),
    # None in config.json is none; GGUF has no word for that.
    Key(field="attention_softcap", kind=SOFTCAP, default=None, gguf_default=50.0,
        gguf="{arch}.attn_logit_softcapping", hugging_face="attn_logit_softcapping"),
    Key(field="softcap", kind=SOFTCAP, default=None, gguf_default=30.0,
        gguf="{arch}.final_logit_softcapping", hugging_face="final_logit_softcapping"),
    Key(field="tied", kind=FLAG, default=True, gguf_default=True,
        hugging_face="tie_word_embeddings"),
    *SCALING,
    *ROPE,
    Key(field="local_rope_base", kind=Real(0, 1e12), gguf_default=same("rope_base"),
        gguf="{arch}.rope.freq_base_swa", written=False),
)  # fmt: skip


def consistent(fields: Fields) -> Fields:
    """Return the fields as the config of either gemma has them; raises `ValueError` if none has."""
    check_heads(fields)
    described = len(fields["windowed_layers"])
    if described != fields["layers"]:
        raise ValueError(
            f"the model has {pluralize(fields['layers'], 'layer')}, but the config states "
            f"attention types for {pluralize(described, 'layer')}"
        )
    return {**fields, "rope_scaling": scaling(fields)}


def _check_fields(fields: Fields) -> Fields:
    if fields.get("local_rope_base", fields["rope_base"]) != fields["rope_base"]:
        raise ValueError("separate RoPE settings for sliding window layers are not supported")
    return consistent(fields)


FAMILY = Family(
    name="gemma2",
    model_types={
        "gemma2": ModelType(
            class_name="Gemma2ForCausalLM", defaults={"attention_softcap": 50.0, "softcap": 30.0}
        )
    },
    config="weightctl.families.gemma2:Gemma2Config",
    module="weightctl.nn.models.gemma2:Gemma2",
    keeps_window=True,
    prefix="model.",
    # llama.cpp reads no output of its own.
    names=(
        EMBEDDING,
        *LAYER,
        NORM,
        Name(module="output", gguf=None, hugging_face="lm_head", unless="tied"),
    ),
    keys=_KEYS,
    fusions=(qkv_form(),),
    standard=standard,
    checked=_check_fields,
)
