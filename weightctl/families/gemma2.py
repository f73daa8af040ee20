"""Gemma 2, and what Gemma 3 has in common with it.

Names and keys: transformers' `modeling_gemma2.py` and `configuration_gemma2.py`; llama.cpp's
`conversion/gemma.py` and `src/models/gemma2.cpp`.

GGUF does not have keys for everything that llama.cpp assumes: the output is the embedding, and the
activation is GELU with tanh. The scale of queries follows from their size, or from the hidden size
in a model with as many layers as the one with 27 billion parameters; the weights contain any other
scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.families.changes import PLUS_ONE, ScaledQueries
from weightctl.families.decoder_keys import DECODER_KEYS, check_decoder, with_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.keys import Key, same
from weightctl.families.kinds import ACTIVATION, FLAG, SIZE, Choice, Exactly, OrNone, Real
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import ROPE_KEYS, standard
from weightctl.families.windowed_layers import WORDS, mark_windowed_layers, pattern_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.families.keys import Fields

__all__ = [
    "BLOCKS",
    "FAMILY",
    "GEMMA_KEYS",
    "GEMMA_LINES",
    "GEMMA_TYPE",
    "ROPE",
    "SCALING",
    "SOFTCAP",
    "check_decoder",
    "query_scalar",
]

_LAYERS_OF_27B, _PERIOD, _NO_CAP = 46, 2, 1e6
SOFTCAP = Real(0, 1e9)

_NORM = {"change": PLUS_ONE}
# Attention and MLP have a norm before and after them.
GEMMA_LINES = adapt(
    DECODER,
    {
        "attention_norm": _NORM,
        "post_attention_norm": _NORM,
        "mlp_norm": {"hugging_face": "model.layers.{}.pre_feedforward_layernorm", **_NORM},
        "post_mlp_norm": _NORM,
        "norm": _NORM,
    },
)
BLOCKS = {"post_norms": True, "embedding_by_root": True}


def query_scalar(layers_of_27b: int) -> Callable[[Fields], int]:
    """Return the default of `query_scalar` in llama.cpp: its root divides the attention scores."""

    def scalar(fields: Fields) -> int:
        if fields["layers"] == layers_of_27b:
            return int(fields["hidden"] // fields["heads"])
        return int(fields["head_dim"])

    return scalar


_SCALAR = query_scalar(_LAYERS_OF_27B)


def _usually_windowed(fields: Fields) -> tuple[bool, ...]:
    return mark_windowed_layers(fields["layers"], _PERIOD)


# transformers' defaults for Gemma 2 and Gemma 3.
GEMMA_TYPE = {
    "vocabulary": 256000, "context": 8192, "hidden": 2304, "layers": 26, "heads": 8, "kv_heads": 4,
    "head_dim": 256, "intermediate": 9216, "tied": True,
}  # fmt: skip

# GGUF cannot express `llama3` scaling of a Gemma: llama.cpp does not read the tensor for it there.
ROPE = tuple(key for key in ROPE_KEYS if key.field != "scaling.kind")
SCALING = (
    Key(field="scaling.kind", default=None,
        kind=Choice({"default": None, "linear": "linear", "yarn": "yarn"}),
        hugging_face="rope_parameters.rope_type"),
    *(key for key in ROPE_KEYS if key.field == "scaling.kind" and key.gguf),
)  # fmt: skip

# The keys of Gemma 2 and Gemma 3, in the order in which defaults are computed from others.
GEMMA_KEYS = with_keys(
    DECODER_KEYS,
    Key(field="activation", kind=ACTIVATION.preferring("gelu_pytorch_tanh"), default="gelu_tanh",
        gguf_default="gelu_tanh", hugging_face="hidden_activation"),
    Key(field="has_biases", kind=Exactly(False, "attention biases are not supported"),
        default=False, hugging_face="attention_bias"),
    without=("experts", "tied", *(key.field for key in ROPE_KEYS)),
)  # fmt: skip

_KEYS = (
    *GEMMA_KEYS,
    Key(field="query_scalar", kind=SIZE, default=256, gguf_default=_SCALAR, is_in_weights=True,
        hugging_face="query_pre_attn_scalar"),
    Key(field="sliding_window", kind=SIZE, default=4096, gguf_default=4096,
        gguf="{arch}.attention.sliding_window", hugging_face="sliding_window"),
    Key(field="windowed_layers", kind=WORDS, default=_usually_windowed,
        hugging_face="layer_types"),
    *pattern_keys(_PERIOD),
    # llama.cpp always applies a cap: None is written as one that does not bound anything.
    Key(field="attention_softcap", kind=OrNone(SOFTCAP, _NO_CAP), default=None, gguf_default=50.0,
        gguf="{arch}.attn_logit_softcapping", hugging_face="attn_logit_softcapping",
        written=True),
    Key(field="softcap", kind=OrNone(SOFTCAP, _NO_CAP), default=None, gguf_default=30.0,
        gguf="{arch}.final_logit_softcapping", hugging_face="final_logit_softcapping",
        written=True),
    Key(field="tied", kind=FLAG, default=True, gguf_default=True,
        hugging_face="tie_word_embeddings"),
    *SCALING,
    *ROPE,
    Key(field="local_rope_base", kind=Real(0, 1e12), gguf_default=same("rope_base"),
        gguf="{arch}.rope.freq_base_swa", written=False),
)  # fmt: skip


def _check_fields(fields: Fields) -> Fields:
    if fields.get("local_rope_base", fields["rope_base"]) != fields["rope_base"]:
        raise ValueError("separate RoPE settings for sliding window layers are not supported")
    # All layers have the same base.
    return {**check_decoder(fields), "local_rope_base": None}


FAMILY = Family(
    name="gemma2",
    model_types={
        "gemma2": ModelType(
            class_name="Gemma2ForCausalLM",
            defaults={**GEMMA_TYPE, "attention_softcap": 50.0, "softcap": 30.0},
        )
    },
    blocks=BLOCKS,
    keeps_window=True,
    # llama.cpp always uses the embedding as the output.
    names=adapt(
        GEMMA_LINES,
        {"output": {"gguf": None}, "attention.q": {"change": ScaledQueries(_SCALAR)}},
    ),
    keys=_KEYS,
    fusions=(qkv_form(),),
    standard=standard,
    checked=_check_fields,
)
