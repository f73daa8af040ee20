"""Gemma 3, and the text model of its multimodal models.

Names and keys: transformers' `modeling_gemma3.py` and `configuration_gemma3.py`; llama.cpp's
`conversion/gemma.py` and its loader of `gemma3`.

What GGUF does not have keys for is as in Gemma 2. In addition, llama.cpp does not apply RoPE
scaling in layers with a window, and does not use windows if the metadata do not state their size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.changes import PLUS_ONE, ScaledQueries
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.gemma2 import (
    BLOCKS,
    GEMMA_KEYS,
    GEMMA_LINES,
    GEMMA_TYPE,
    ROPE,
    SCALING,
    SOFTCAP,
    check_decoder,
    query_scalar,
)
from weightctl.families.keys import IsAbsent, Key
from weightctl.families.kinds import FLAG, LAYERS, SIZE, Exactly, OrNone, Real
from weightctl.families.layer_rope import keys_of_global_layers, object_of, rope_by_layer
from weightctl.families.lines import adapt
from weightctl.families.windowed_layers import LOCAL, WORDS, mark_windowed_layers, pattern_keys
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

_LAYERS_OF_27B, _PERIOD, _WINDOW = 62, 6, 4096
_BASE, _LOCAL_BASE = 1_000_000.0, 10_000.0
_ROPE, _TIED, _TYPES = "rope_parameters", "tie_word_embeddings", "layer_types"


def _find_stated_window(fields: Fields) -> int | None:
    """Return the window that GGUF states, None if no layer has one."""
    window: int | None = fields.get("sliding_window")
    return window if any(fields.get("windowed_layers", ())) else None


def _window(fields: Fields) -> int:
    return int(fields["stated_window"] or _WINDOW)


_PATTERN, _FLAGS = pattern_keys(_PERIOD)
_SCALAR = query_scalar(_LAYERS_OF_27B)


def _mark_layers(fields: Fields) -> Any:
    """Return which layers have a window: none if GGUF does not state its size."""
    spread: Any = _FLAGS.gguf_default
    windowed = spread(fields)
    return windowed if fields["stated_window"] is not None else (False,) * len(windowed)


_KEYS = (
    *GEMMA_KEYS,
    Key(field="query_scalar", kind=SIZE, default=256, gguf_default=_SCALAR, is_in_weights=True,
        hugging_face="query_pre_attn_scalar"),
    Key(field="stated_window", kind=OrNone(SIZE), gguf_default=_find_stated_window,
        gguf="{arch}.attention.sliding_window"),
    Key(field="windowed_layers", kind=WORDS, hugging_face=_TYPES),
    _PATTERN,
    replace(_FLAGS, gguf_default=_mark_layers),
    Key(field="sliding_window", kind=SIZE, default=_WINDOW, gguf_default=_window,
        hugging_face="sliding_window"),
    Key(field="attention_softcap", default=None, gguf_default=None,
        kind=Exactly(None,
            "neither transformers nor llama.cpp supports soft caps in its attention"),
        hugging_face="attn_logit_softcapping"),
    Key(field="softcap", kind=OrNone(SOFTCAP, 0.0), default=None, gguf_default=None,
        gguf="{arch}.final_logit_softcapping", hugging_face="final_logit_softcapping"),
    Key(field="tied", kind=FLAG, default=True, hugging_face=_TIED, seen=IsAbsent("output.weight")),
    *keys_of_global_layers((*SCALING, *ROPE), _BASE),
    Key(field="local_rope_base", kind=Real(1e-6, 1e12, is_closed=True), default=_LOCAL_BASE,
        gguf_default=_LOCAL_BASE, gguf="{arch}.rope.freq_base_swa",
        hugging_face=f"{_ROPE}.{LOCAL}.rope_theta"),
)  # fmt: skip


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the text model in the form of transformers 5."""
    text = _text(document)
    kinds = text.get(_TYPES)
    if kinds is None:
        kinds = _types(text)
    found = {**text, _TYPES: kinds, **rope_by_layer(text)}
    # A window has no meaning if no layer uses it.
    has_window = not is_list(kinds) or LOCAL in kinds
    return found if has_window else {**found, "sliding_window": _WINDOW}


def _text(document: Mapping[str, Any]) -> Mapping[str, Any]:
    if document.get("model_type") != "gemma3":
        return document
    text = object_of(document, "text_config")
    # The output belongs to the whole model, and so does the key that states that it is tied.
    return {**text, _TIED: document[_TIED]} if _TIED in document else text


def _types(text: Mapping[str, Any]) -> list[str]:
    """Return the layer types, which older versions of transformers stated as a period."""
    layers = LAYERS.read(text.get("num_hidden_layers", 26))
    pattern = text.get("sliding_window_pattern")
    period = _PERIOD if pattern is None else SIZE.read(pattern)
    return WORDS.write(mark_windowed_layers(layers, period))


def _check_fields(fields: Fields) -> Fields:
    made = check_decoder(fields)
    if fields["scaling.kind"] == "yarn" and any(fields["windowed_layers"]):
        # llama.cpp would partly apply the scaling in layers with a window, too.
        raise ValueError("`yarn` scaling in a model with sliding window layers is not supported")
    return made


FAMILY = Family(
    name="gemma3",
    model_types={
        "gemma3_text": ModelType(
            class_name="Gemma3ForCausalLM",
            defaults={**GEMMA_TYPE, "vocabulary": 262208, "context": 131072},
        ),
        "gemma3": ModelType(
            class_name="Gemma3ForConditionalGeneration",
            defaults={**GEMMA_TYPE, "vocabulary": 262208, "context": 131072},
        ),
    },
    blocks={**BLOCKS, "qk_norm": "head"},
    keeps_window=True,
    # The prefixes of the text model in multimodal checkpoints: on the Hub, in memory, without a
    # head.
    other_prefixes=("language_model.model.", "model.language_model.", "language_model."),
    names=adapt(
        GEMMA_LINES,
        {
            "attention.q_norm": {"change": ScaledQueries(_SCALAR, is_norm=True)},
            "attention.k_norm": {"change": PLUS_ONE},
        },
    ),
    keys=_KEYS,
    fusions=(qkv_form(),),
    # The image encoder of a multimodal model, and its projection to token vectors.
    beside=(r"vision_tower\..+", r"multi_modal_projector\..+"),
    standard=_standard,
    checked=_check_fields,
)
