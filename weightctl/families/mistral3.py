"""Ministral 3, and the text model of Mistral Small 3.1: a llama with an attention temperature.

Names and keys: transformers' `modeling_ministral3.py` and `configuration_mistral3.py`; llama.cpp's
`models/mistral3.cpp` and `conversion/mistral3.py`. In both, cosines and sines are multiplied by the
ratio of `mscale` and `mscale_all_dim`, and the scores are not scaled in addition.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import (
    DECODER_KEYS,
    SLIDING_WINDOW,
    check_decoder,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.keys import Key, same
from weightctl.families.kinds import SIZE, OrNone, Real
from weightctl.families.layer_rope import object_of
from weightctl.families.lines import DECODER, ROPE_ROWS, adapt
from weightctl.families.rope_keys import standard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

_MULTIPLIER = Real(0, 1e6, is_closed=True)
_ORIGINAL = "rope_parameters.original_max_position_embeddings"
# The prefixes of the text model in multimodal checkpoints: on the Hub, in memory, without a head.
MULTIMODAL_PREFIXES = ("language_model.model.", "model.language_model.", "language_model.")
# The image encoder of a multimodal model, and its projection to token vectors.
MULTIMODAL_PARTS = (r"vision_tower\..+", r"multi_modal_projector\..+")

# In llama.cpp, this is `mscale_all_dim` of cosines and sines, and `mscale` is 1.
HEAD_MULTIPLIER = Key(
    field="scaling.head_multiplier",
    kind=OrNone(_MULTIPLIER, 0.0),
    default=None,
    gguf_default=None,
    gguf="{arch}.rope.scaling.yarn_log_multiplier",
)
# transformers reads the second key even if the first one is 0.
TEMPERATURE_KEYS = (
    Key(field="temperature_scale", kind=_MULTIPLIER, default=0.0, gguf_default=0.0,
        gguf="{arch}.attention.temperature_scale",
        hugging_face="rope_parameters.llama_4_scaling_beta"),
    Key(field="temperature_length", kind=SIZE, default=same("context"),
        gguf_default=same("scaling.original_context"), hugging_face=_ORIGINAL, written=True),
)  # fmt: skip

_MINISTRAL = {
    "vocabulary": 131072,
    "context": 262144,
    "intermediate": 14336,
    "layers": 34,
    "kv_heads": 8,
    "head_dim": 128,
    "norm_epsilon": 1e-5,
}
# transformers' defaults if config.json does not have RoPE keys.
_ROPE: Mapping[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
# Its defaults for a text model of type `mistral`.
_MISTRAL: Mapping[str, Any] = {
    "vocab_size": 32000,
    "max_position_embeddings": 131072,
    "num_hidden_layers": 32,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "head_dim": None,
    "rope_theta": 10000.0,
}


def standard_text(document: Mapping[str, Any], rope: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the standard config.json of a text model, with `rope` if it does not state RoPE.

    A multimodal model has it as `text_config`.
    """
    if document["model_type"] == "mistral3":
        text = object_of(document, "text_config")
        if text.get("model_type", "mistral") == "mistral":
            rope, text = {}, {**_MISTRAL, **text}
        tied = "tie_word_embeddings"
        document = {**text, tied: document[tied]} if tied in document else text
    if not document.get("rope_scaling") and not document.get("rope_parameters"):
        document = {**document, "rope_parameters": rope}
    return standard(document)


def check_temperature(fields: Fields) -> Fields:
    """Return the fields; raises `ValueError` for a temperature that llama.cpp does not support."""
    if fields["temperature_scale"] and fields["scaling.kind"] != "yarn":
        raise ValueError("`llama_4_scaling_beta` is only supported with `yarn` scaling")
    return fields


def _check(fields: Fields) -> Fields:
    return check_decoder(check_temperature(fields))


FAMILY = Family(
    name="mistral3",
    model_types={
        "ministral3": ModelType(class_name="Ministral3ForCausalLM", defaults=_MINISTRAL),
        "mistral3": ModelType(
            class_name="Mistral3ForConditionalGeneration", defaults=_MINISTRAL
        ),
    },
    names=adapt(DECODER, ROPE_ROWS),
    keys=with_keys(
        DECODER_KEYS,
        SLIDING_WINDOW,
        HEAD_MULTIPLIER,
        *TEMPERATURE_KEYS,
    ),
    other_prefixes=MULTIMODAL_PREFIXES,
    beside=MULTIMODAL_PARTS,
    fusions=(qkv_form(),),
    standard=partial(standard_text, rope=_ROPE),
    checked=_check,
)  # fmt: skip
