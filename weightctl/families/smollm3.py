"""SmolLM3: a llama without RoPE in every fourth layer.

Names and keys: transformers' `modeling_smollm3.py`; llama.cpp's `models/smollm3.cpp`, which does
not have a key for the layers without RoPE.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.families.decoder_keys import with_keys
from weightctl.families.family import ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import SIZE, Exactly
from weightctl.families.layers import ONES, every_but
from weightctl.families.llama import FAMILY as LLAMA

if TYPE_CHECKING:
    from weightctl.families.keys import Fields

_WINDOW = "sliding windows are not supported, because llama.cpp has none for smollm3"


def _by_interval(fields: Fields) -> tuple[bool, ...]:
    return every_but(fields["no_rope_interval"])(fields)


FAMILY = replace(
    LLAMA,
    name="smollm3",
    model_types={
        "smollm3": ModelType(
            class_name="SmolLM3ForCausalLM",
            defaults={
                "vocabulary": 128256,
                "context": 32768,
                "hidden": 2048,
                "layers": 36,
                "heads": 16,
                "kv_heads": 4,
                "rope_base": 2000000.0,
                "tied": True,
            },
        )
    },
    keys=with_keys(
        LLAMA.keys,
        Key(field="no_rope_interval", kind=SIZE, default=4, hugging_face="no_rope_layer_interval"),
        Key(field="rotated_layers", kind=ONES, default=_by_interval, gguf_default=every_but(4),
            hugging_face="no_rope_layers", written=True),
        Key(field="uses_window", kind=Exactly(False, _WINDOW), default=False,
            hugging_face="use_sliding_window"),
        without=("sliding_window",),
    ),
    beside=(),
)  # fmt: skip
