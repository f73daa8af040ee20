"""The audio encoder of Qwen2-Audio: Whisper's, with averages of pairs that are projected.

Names and keys: transformers' `modeling_qwen2_audio.py` and `configuration_qwen2_audio.py`;
llama.cpp's `conversion/ultravox.py` (`WhisperEncoderModel`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.family import Family, ModelType
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
    return with_usual_sizes(document, is_of_whisper=True)


def _describe_extractor(fields: Fields) -> Mapping[str, Any]:
    return {**describe_extractor(fields), "processor_class": "Qwen2AudioProcessor"}


TOWER = Tower(
    family=Family(
        name="the audio encoder of qwen2a",
        gguf=CLIP,
        module="",
        config="weightctl.families.towers.audio:AudioConfig",
        model_types={"qwen2_audio": ModelType(class_name="Qwen2AudioForConditionalGeneration")},
        prefix="",
        other_prefixes=("model.",),
        names=(
            *encoder_lines(),
            part("projector", "mm.a.fc", "multi_modal_projector.linear", "text_hidden", "hidden",
                 bias=True),
        ),
        keys=audio_keys("qwen2a", is_of_whisper=True),
        standard=_standard,
    ),
    texts=("qwen2",),
    text_prefixes={"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
    processor=_describe_extractor,
    tokens={"audio_token_index": "<|AUDIO|>"},
)  # fmt: skip
