"""OLMo 3: an OLMo 2 with windows in three of four layers, and RoPE scaling in the others.

Names and keys: transformers' `modeling_olmo3.py`; llama.cpp's `models/olmo2.cpp`, which treats it
as an olmo2 with a window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families import FAMILIES
from weightctl.families.decoder_keys import with_keys
from weightctl.families.family import ModelType
from weightctl.families.layer_rope import keys_of_global_layers, local_base_key, rope_by_layer
from weightctl.families.layers import window_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.metadata import MetadataValue

OLMO2 = FAMILIES["olmo2"].load()


def _has_window(metadata: Mapping[str, MetadataValue]) -> bool:
    return "olmo2.attention.sliding_window" in metadata


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**document, **rope_by_layer(document)}


FAMILY = replace(
    OLMO2,
    name="olmo3",
    gguf="olmo2",
    is_of=_has_window,
    model_types={
        "olmo3": ModelType(
            class_name="Olmo3ForCausalLM", defaults=OLMO2.model_types["olmo2"].defaults
        )
    },
    keeps_window=True,
    keys=(
        *keys_of_global_layers(with_keys(OLMO2.keys, *window_keys(4, window=4096)), 500000.0),
        local_base_key(500000.0),
    ),
    older={"rope_local_base_freq": ""},
    standard=_standard,
)
