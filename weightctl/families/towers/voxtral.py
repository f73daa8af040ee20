"""The audio encoder of Voxtral: Whisper's, and an MLP of four vectors in a row.

Names and keys: transformers' `modeling_voxtral.py` and `configuration_voxtral.py`; llama.cpp's
`conversion/ultravox.py` (`VoxtralWhisperEncoderModel`) and `tools/mtmd/models/whisper-enc.cpp`,
which averages pairs of vectors before it puts four of them in a row. llama.cpp then stops, because
the 188 vectors of 30 seconds are not the 187 that it expects (`tools/mtmd/clip.cpp`).
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

_STACKED = 4


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return with_usual_sizes(document, is_of_whisper=False)


def _check(fields: Fields) -> Fields:
    if fields["intermediate"] != _STACKED * fields["hidden"]:
        raise ValueError(
            f"the projection takes vectors of {fields['intermediate']} values, but llama.cpp puts "
            f"{_STACKED} vectors of {fields['hidden']} values in a row"
        )
    return {**fields, "projected": fields["intermediate"]}


def _find_difference(_: Fields) -> str:
    return (
        "it averages pairs of vectors before the projection, so that a recording has half as many "
        "tokens, and some versions stop at their number"
    )


def _describe_extractor(fields: Fields) -> Mapping[str, Any]:
    return {**describe_extractor(fields), "processor_class": "VoxtralProcessor"}


TOWER = Tower(
    family=Family(
        name="the audio encoder of voxtral",
        gguf=CLIP,
        module="",
        config="weightctl.families.towers.audio:AudioConfig",
        model_types={"voxtral": ModelType(class_name="VoxtralForConditionalGeneration")},
        prefix="",
        other_prefixes=("model.",),
        names=(
            *encoder_lines(),
            part("projector.1", "mm.a.mlp.1", "multi_modal_projector.linear_1", "text_hidden",
                 "projected"),
            part("projector.2", "mm.a.mlp.2", "multi_modal_projector.linear_2", "text_hidden",
                 "text_hidden"),
        ),
        keys=(
            *audio_keys("voxtral"),
            Key(field="stacked", gguf="clip.audio.projector.stack_factor", gguf_default=_STACKED,
                default=_STACKED, written=True,
                kind=Exactly(_STACKED, "transformers has 4 vectors in a row")),
            Key(field="projector_activation", default="gelu", gguf_default="gelu",
                hugging_face="projector_hidden_act",
                kind=Exactly("gelu", "llama.cpp has another activation in its projection")),
        ),
        standard=_standard,
        checked=_check,
    ),
    texts=("llama",),
    text_prefixes={"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
    processor=_describe_extractor,
    tokens={"audio_token_id": "[AUDIO]"},
    differs=_find_difference,
)  # fmt: skip
