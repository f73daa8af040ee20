"""The audio encoder of Audio Flamingo 3: Whisper's, and an MLP of averages of pairs.

Names and keys: transformers' `modeling_audioflamingo3.py` and `configuration_audioflamingo3.py`;
llama.cpp's `conversion/ultravox.py` (`AudioFlamingo3WhisperEncoderModel`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import Exactly
from weightctl.families.model import CLIP
from weightctl.families.towers.audio import (
    audio_keys,
    describe_extractor,
    encoder_lines,
    with_usual_sizes,
)
from weightctl.families.towers.tower import Tower, part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return with_usual_sizes(document, is_of_whisper=False)


def _describe_extractor(fields: Fields) -> Mapping[str, Any]:
    return {**describe_extractor(fields), "processor_class": "AudioFlamingo3Processor"}


TOWER = Tower(
    family=Family(
        name="the audio encoder of musicflamingo",
        gguf=CLIP,
        module="",
        config="weightctl.families.towers.audio:AudioConfig",
        model_types={
            "audioflamingo3": ModelType(class_name="AudioFlamingo3ForConditionalGeneration")
        },
        prefix="",
        other_prefixes=("model.",),
        names=(
            *encoder_lines(),
            part("projector.1", "mm.a.mlp.1", "multi_modal_projector.linear_1", "text_hidden",
                 "hidden", bias="has_projector_bias"),
            part("projector.2", "mm.a.mlp.2", "multi_modal_projector.linear_2", "text_hidden",
                 "text_hidden", bias="has_projector_bias"),
        ),
        keys=(
            *audio_keys("musicflamingo"),
            Key(field="has_projector_bias", kind=Exactly(True, "llama.cpp needs these biases"),
                default=True, gguf_default=True, hugging_face="projector_bias"),
            Key(field="projector_activation", default="gelu", gguf_default="gelu",
                hugging_face="projector_hidden_act",
                kind=Exactly("gelu", "llama.cpp has another activation in its projection")),
        ),
        standard=_standard,
    ),
    texts=("qwen2",),
    text_prefixes={"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
    processor=_describe_extractor,
    tokens={"audio_token_id": "<sound>"},
)  # fmt: skip
