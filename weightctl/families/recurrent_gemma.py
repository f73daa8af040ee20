"""RecurrentGemma (Griffin): linear recurrent units in most layers, and attention in the others.

Names and keys: transformers' `modeling_recurrent_gemma.py` and `configuration_recurrent_gemma.py`.
llama.cpp does not have the architecture: the names in GGUF files are weightctl's own, like those of
similar parts.
"""

from __future__ import annotations

from itertools import cycle, islice
from math import frexp, ldexp
from typing import TYPE_CHECKING, Any

from weightctl.families.changes import PLUS_ONE
from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    PARTIAL_ROPE,
    activation,
    check_decoder,
    rename_keys,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.gemma2 import SOFTCAP
from weightctl.families.hybrid import check_kv_heads, hybrid_keys, hybrid_lines
from weightctl.families.keys import Key, same
from weightctl.families.kinds import FLAG, LAYERS, SIZE, Exactly, Real
from weightctl.families.layers import LayerChoice
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import ROPE_KEYS
from weightctl.families.rope_keys import standard as standard_rope
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.families.keys import Fields

_TYPES, _WIDTH, _RECURRENT, _ATTENTION = (
    "block_types", "intermediate_size", "recurrent", "attention"
)  # fmt: skip
# The bits of a mantissa in bfloat16.
_BITS = 8
_NOT_SCALED = "RecurrentGemma has no RoPE scaling"


def _find_embedding_scale(fields: Fields) -> float:
    """Return the root of the hidden size, which transformers rounds to bfloat16."""
    mantissa, exponent = frexp(fields["hidden"] ** 0.5)
    return ldexp(round(mantissa * (1 << _BITS)), exponent - _BITS)


def _mark_attention(fields: Fields) -> tuple[bool, ...]:
    return tuple(layer % 3 == 2 for layer in range(fields["layers"]))


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with a type for each layer, and with the width that the MLP has.

    transformers repeats the types, and halves the width.
    """
    found = dict(standard_rope(document))
    types, width = found.get(_TYPES), found.get(_WIDTH)
    if is_list(types) and types:
        found[_TYPES] = list(islice(cycle(types), LAYERS.read(found.get("num_hidden_layers", 26))))
    if type(width) is int:
        found[_WIDTH] = width // 2
    return found


def _complete(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the opposite: the shortest list of types, and twice the width of the MLP."""
    types: Sequence[str] = document[_TYPES]
    period = next(
        count
        for count in range(1, len(types) + 1)
        if list(islice(cycle(types[:count]), len(types))) == types
    )
    return {**document, _TYPES: types[:period], _WIDTH: 2 * document[_WIDTH]}


def _check(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    check_kv_heads(fields)
    width, heads = fields["lru_width"], fields["heads"]
    if width % heads:
        raise ValueError(
            f"the {width} channels of a linear recurrent unit cannot be divided evenly among "
            f"{heads} heads"
        )
    return check_decoder(fields)


_KEYS = rename_keys(
    hybrid_keys(
        with_keys(
            DECODER_KEYS,
            # The config has no number of positions; this is what the models were trained with.
            Key(field="context", kind=SIZE, default=8192, gguf="{arch}.context_length"),
            activation("gelu_tanh", "gelu_pytorch_tanh", key="hidden_activation"),
            next(key for key in BIASES if key.field == "attention_bias"),
            Key(field="tied", kind=FLAG, default=True, gguf_default=True,
                hugging_face="tie_word_embeddings"),
            Key(field="softcap", kind=SOFTCAP, default=30.0,
                gguf="{arch}.final_logit_softcapping", hugging_face="logits_soft_cap"),
            Key(field="sliding_window", kind=SIZE, default=2048,
                gguf="{arch}.attention.sliding_window", hugging_face="attention_window_size"),
            Key(field="lru_width", kind=SIZE, default=same("hidden"),
                gguf="{arch}.recurrent.inner_size", hugging_face="lru_width", written=True),
            Key(field="convolution_length", kind=SIZE, default=4,
                gguf="{arch}.recurrent.conv_kernel", hugging_face="conv1d_width"),
            Key(field="embedding_scale", kind=Real(0, 1e9), default=_find_embedding_scale,
                gguf_default=_find_embedding_scale),
            PARTIAL_ROPE,
            Key(field="is_scaled", kind=Exactly("default", _NOT_SCALED), default="default",
                gguf_default="default", hugging_face="rope_parameters.rope_type"),
            without=tuple(
                key.field for key in ROPE_KEYS if key.field.startswith("scaling.")
            ),
        ),
        LayerChoice(_ATTENTION, _RECURRENT),
        "lru_layers",
    ),
    {"attention_layers": _TYPES},
)  # fmt: skip

_MIXER, _MLP, _NORM = "temporal_block.", "mlp_block.", {"change": PLUS_ONE}
_LAYER = "model.layers.{}."

FAMILY = Family(
    name="recurrent_gemma",
    gguf="recurrent-gemma",
    model_types={
        "recurrent_gemma": ModelType(
            class_name="RecurrentGemmaForCausalLM",
            defaults={
                "vocabulary": 256000,
                "hidden": 2560,
                "layers": 26,
                "heads": 10,
                "intermediate": 3840,
                "rotated_share": 0.5,
                "attention_layers": _mark_attention,
            },
        )
    },
    blocks={"attention_output_bias": True, "mlp_bias": True},
    in_llama_cpp=False,
    names=hybrid_lines(
        adapt(
            DECODER,
            {
                "attention_norm": {"hugging_face": f"{_LAYER}temporal_pre_norm", **_NORM},
                **{f"attention.{part}": f"{_MIXER}{part}_proj" for part in "qkvo"},
                "lru.gate": {},
                "lru.inputs": {},
                "lru.kernel": {},
                "lru.input_gate": {},
                "lru.input_gate_bias": {},
                "lru.fade_gate": {},
                "lru.fade_gate_bias": {},
                "lru.rates": {},
                "lru.outputs": {},
                "mlp_norm": {"hugging_face": f"{_LAYER}channel_pre_norm", **_NORM},
                **{f"mlp.{part}": f"{_MLP}{part}_proj" for part in ("gate", "up", "down")},
                "norm": {"hugging_face": "model.final_norm", **_NORM},
            },
        ),
        {"attention": "attention_layers"},
    ),
    keys=_KEYS,
    standard=_standard,
    completed=_complete,
    checked=_check,
)  # fmt: skip
