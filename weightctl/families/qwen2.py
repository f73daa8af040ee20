"""Qwen2 and Qwen2.5, dense models: a llama whose queries, keys and values have biases.

Names and keys: transformers' `modeling_qwen2.py` and `configuration_qwen2.py`; llama.cpp's
`convert_hf_to_gguf.py` and `llama-model.cpp`. GGUF has the rows of queries and keys in the same
order as Hugging Face. llama.cpp ignores the keys of a sliding window and uses full attention.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import BIASES, DECODER_KEYS, check_decoder, with_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.keys import Key
from weightctl.families.kinds import FLAG, SIZE, OrNone
from weightctl.families.lines import DECODER
from weightctl.families.multimodal import in_multimodal
from weightctl.families.rope_keys import standard as standard_rope
from weightctl.families.windowed_layers import FLAGS, WORDS, with_layer_types

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields


def _uses_window(fields: Fields) -> bool:
    return fields["sliding_window"] is not None


# The keys of Qwen2 and Qwen3.
KEYS = with_keys(
    DECODER_KEYS,
    Key(field="sliding_window", kind=OrNone(SIZE), default=None, gguf_default=None,
        gguf="{arch}.attention.sliding_window", hugging_face="sliding_window"),
    Key(field="uses_window", kind=FLAG, default=_uses_window, hugging_face="use_sliding_window",
        written=True),
    Key(field="windowed_layers", kind=WORDS, default=None, hugging_face="layer_types"),
    Key(field="windowed_layers", kind=FLAGS, gguf_default=None,
        gguf="{arch}.attention.sliding_window_pattern"),
    without=("experts",),
)  # fmt: skip


def standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in the form of current versions of transformers."""
    return with_layer_types(standard_rope(document), window=4096, first=28, layers=32)


def check_fields(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them.

    Raises `ValueError` if they contradict each other.
    """
    made = check_decoder(fields)
    if any(fields["windowed_layers"] or ()) and fields["sliding_window"] is None:
        raise ValueError(
            "the config states layers with a sliding window, but not the size of the window"
        )
    return made


FAMILY = in_multimodal(
    Family(
        name="qwen2",
        model_types={
            "qwen2": ModelType(
                class_name="Qwen2ForCausalLM",
                defaults={
                    "vocabulary": 151936,
                    "context": 32768,
                    "intermediate": 22016,
                    "kv_heads": 32,
                    "attention_bias": True,
                },
            )
        },
        heads_fill_hidden=True,
        names=DECODER,
        keys=with_keys(KEYS, replace(BIASES[0], hugging_face="")),
        fusions=(qkv_form(),),
        standard=standard,
        checked=check_fields,
    ),
    {
        "internvl": "InternVLForConditionalGeneration",
        "audioflamingo3": "AudioFlamingo3ForConditionalGeneration",
        "qwen2_audio": "Qwen2AudioForConditionalGeneration",
    },
)
