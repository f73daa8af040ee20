"""ModernBERT: gated MLPs, and windows in two of three layers, with another RoPE base.

Names and keys: transformers' `modeling_modernbert.py`; llama.cpp's `models/modern-bert.cpp`.

The attention of the first layer reads the normed embedding without another norm. A window counts
the positions on both sides together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import (
    DECODER_KEYS,
    PLAIN_HEADS,
    check_decoder,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.heads import (
    HEAD_KEYS,
    check_head,
    complete_head,
    head_lines,
    reading_head,
    with_prefix,
)
from weightctl.families.keys import Key
from weightctl.families.kinds import EPSILON, SIZE, Choice, Exactly, Real
from weightctl.families.layer_rope import keys_of_global_layers, object_of, rope_by_layer
from weightctl.families.layers import ONES
from weightctl.families.lines import layer_lines, line
from weightctl.families.windowed_layers import (
    GLOBAL,
    LOCAL,
    WORDS,
    mark_windowed_layers,
    pattern_keys,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

_BASE, _LOCAL_BASE, _PERIOD, _LAYERS = 160000.0, 10000.0, 3, 22
_ROPE, _TYPES = "rope_parameters", "layer_types"
_BIASES = {
    "norm_bias": "norm_bias",
    "attention_bias": "attention_bias",
    "attention_output_bias": "attention_bias",
    "mlp_bias": "mlp_bias",
}


# The keys of config.json that only apply to heads.
_OF_HEADS = ("classifier_bias", "classifier_activation", "classifier_pooling")


def _mark_windowed(fields: Fields) -> tuple[bool, ...]:
    return mark_windowed_layers(fields["layers"], _PERIOD, is_first_global=True)


def _mark_normed(fields: Fields) -> tuple[bool, ...]:
    return tuple(layer > 0 for layer in range(fields["layers"]))


def _find_pooling(fields: Fields) -> str:
    """Return how llama.cpp's head pools: by mean with labels, otherwise by the first position."""
    return "mean" if fields["labels"] else "first"


def _check(fields: Fields) -> Fields:
    return check_decoder(check_head(fields))


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with layer types and RoPE in the form of transformers 5."""
    older = {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"}
    given = object_of(document, _ROPE)
    rope = {
        kind: {"rope_theta": document[name]} | dict(object_of(given, kind))
        if name in document
        else object_of(given, kind)
        for kind, name in older.items()
    }
    rope[LOCAL] = {"rope_theta": _LOCAL_BASE} | dict(rope[LOCAL])
    found = {**document, **rope_by_layer({**document, _ROPE: rope})}
    if found.get(_TYPES) is None:
        period = SIZE.read(document.get("global_attn_every_n_layers", _PERIOD))
        layers = SIZE.read(document.get("num_hidden_layers", _LAYERS))
        found[_TYPES] = WORDS.write([layer % period != 0 for layer in range(layers)])
    return found


_NAMES = (
    line("embedding", hugging_face="embeddings.tok_embeddings"),
    line("embedding_norm", hugging_face="embeddings.norm"),
    *layer_lines(
        "layers.{}.",
        {
            "attention_norm": {"hugging_face": "attn_norm", "when": ("attention_norms",)},
            "attention.qkv": "attn.Wqkv",
            "attention.o": "attn.Wo",
            "mlp_norm": "mlp_norm",
            "mlp.gate_up": "mlp.Wi",
            "mlp.down": "mlp.Wo",
        },
        bias=False,
    ),
    line("norm", hugging_face="final_norm"),
)

FAMILY = Family(
    name="modernbert",
    gguf="modern-bert",
    model_types={
        "modernbert": ModelType(
            class_name="ModernBertModel",
            defaults={
                "vocabulary": 50368,
                "context": 8192,
                "hidden": 768,
                "layers": _LAYERS,
                "heads": 12,
                "intermediate": 1152,
            },
        )
    },
    config="weightctl.families.encoder:EncoderConfig",
    module="weightctl.nn.models.encoder:TextEncoder",
    blocks={
        "norm": "layer",
        "norm_bias": False,
        "embedding_norm": True,
        "fused_qkv": True,
        "fused_gate_up": True,
        "head_norm": True,
    },
    names=(*with_prefix(_NAMES, "model."), *head_lines("head.dense", "classifier", "head.norm")),
    keys=(
        *keys_of_global_layers(
            with_keys(
                DECODER_KEYS,
                *PLAIN_HEADS,
                Key(field="norm_epsilon", kind=EPSILON, default=1e-5,
                    gguf="{arch}.attention.layer_norm_epsilon", hugging_face="norm_eps"),
                Key(field="activation", kind=Choice({"gelu": "gelu", "silu": "silu"}),
                    default="gelu", gguf_default="gelu", gguf="{arch}.hidden_activation",
                    hugging_face="hidden_activation"),
                Key(field="is_causal", kind=Exactly(False, "ModernBERT attends to later tokens"),
                    gguf_default=False, gguf="{arch}.attention.causal", written=True),
                without=("tied", "experts", "value_dim"),
            ),
            _BASE,
        ),
        *(
            Key(field=field, default=False, hugging_face=name,
                kind=Exactly(False, "llama.cpp does not load biases in ModernBERT"))
            for field, name in _BIASES.items()
        ),
        Key(field="local_rope_base", kind=Real(1e-6, 1e12, is_closed=True), default=_LOCAL_BASE,
            gguf_default=_LOCAL_BASE, gguf="{arch}.rope.freq_base_swa", written=True,
            hugging_face=f"{_ROPE}.{LOCAL}.rope_theta"),
        Key(field="sliding_window", kind=SIZE, default=128, gguf_default=128,
            gguf="{arch}.attention.sliding_window", hugging_face="local_attention"),
        Key(field="windowed_layers", kind=WORDS, default=_mark_windowed, hugging_face=_TYPES,
            written=True),
        *pattern_keys(_PERIOD, is_first_global=True),
        *HEAD_KEYS,
        Key(field="head_bias", kind=Exactly(False, "llama.cpp does not load a bias of the head"),
            default=False, gguf_default=False, hugging_face="head.classifier_bias"),
        Key(field="head_activation", kind=Choice({"gelu": "gelu"}), default="gelu",
            gguf_default="gelu", hugging_face="head.classifier_activation"),
        Key(field="head_pooling", kind=Choice({"cls": "first", "mean": "mean"}), default="first",
            gguf_default=_find_pooling, hugging_face="head.classifier_pooling"),
        Key(field="attention_norms", kind=ONES, default=_mark_normed, gguf_default=_mark_normed),
    ),
    beside=(r"head\..*", r"decoder\..*"),
    keeps_window=True,
    older={"rope_theta": "global_rope_theta", "rope_local_base_freq": "local_rope_theta"},
    standard=reading_head(_standard, *_OF_HEADS),
    completed=complete_head,
    checked=_check,
)  # fmt: skip
