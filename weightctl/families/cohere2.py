"""Command R7B and Command A: a Command R in which only layers with a window have RoPE.

Names and keys: transformers' `modeling_cohere2.py`; llama.cpp's `models/cohere2.cpp`, in which the
last layer of each period has full attention.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.cohere import FAMILY as COHERE
from weightctl.families.decoder_keys import with_keys
from weightctl.families.family import ModelType
from weightctl.families.keys import Key, same
from weightctl.families.kinds import SIZE
from weightctl.families.layers import ONES, every_but
from weightctl.families.rope_keys import standard
from weightctl.families.windowed_layers import WORDS, mark_windowed_layers, pattern_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

_PERIOD = 4


def _usual_layers(fields: Fields) -> tuple[bool, ...]:
    return every_but(_PERIOD)(fields)


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in the form of transformers 5: layer types instead of a period."""
    found = standard(document)
    period = document.get("sliding_window_pattern")
    if period is None or document.get("layer_types") is not None:
        return found
    layers = mark_windowed_layers(document.get("num_hidden_layers", 40), SIZE.read(period))
    return {**found, "layer_types": WORDS.write(layers)}


FAMILY = replace(
    COHERE,
    name="cohere2",
    gguf="",
    model_types={
        "cohere2": ModelType(
            class_name="Cohere2ForCausalLM",
            defaults={**COHERE.model_types["cohere"].defaults, "rope_base": 10000.0},
        )
    },
    keeps_window=True,
    keys=with_keys(
        COHERE.keys,
        Key(field="sliding_window", kind=SIZE, default=4096, gguf="{arch}.attention.sliding_window",
            hugging_face="sliding_window"),
        *pattern_keys(_PERIOD),
        Key(field="windowed_layers", kind=WORDS, default=_usual_layers,
            hugging_face="layer_types", written=True),
        Key(field="rotated_layers", kind=ONES, default=same("windowed_layers"),
            gguf_default=same("windowed_layers")),
        without=("has_qk_norms",),
    ),
    standard=_standard,
)  # fmt: skip
