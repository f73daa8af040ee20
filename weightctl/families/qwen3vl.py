"""The text model of Qwen3-VL: a Qwen3 with multimodal RoPE.

Names and keys: transformers' `modeling_qwen3_vl.py` and `configuration_qwen3_vl.py`; llama.cpp's
`models/qwen3vl.cpp` and `conversion/qwen3vl.py`. The image encoder also returns vectors that are
added after the first layers (deepstack), and GGUF states for how many layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families import FAMILIES
from weightctl.families.family import ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import WholeNumber
from weightctl.families.rope_sections import (
    find_empty_sections,
    find_unrotated,
    section_keys,
    standard_text,
    with_default_rope,
)
from weightctl.families.windowed_layers import standard_windows as standard_qwen2
from weightctl.text.untyped import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

QWEN3 = FAMILIES["qwen3"].load()

_COUNT = WholeNumber(0, 1024)
# The image encoder's layers whose output is added, as transformers' default config lists them.
_USUAL = 3
_DEEPSTACK = "deepstack_layers"


def _find_deepstack(fields: Fields) -> int:
    return int(fields.get("listed_layers", 0))


VISION_KEYS = (
    *section_keys((24, 20, 20), interleaved=True),
    Key(field="listed_layers", kind=_COUNT, default=0, hugging_face=_DEEPSTACK, written=False),
    Key(field=_DEEPSTACK, kind=_COUNT, gguf_default=_find_deepstack,
        gguf="{arch}.n_deepstack_layers"),
)  # fmt: skip


def standard_vision_text(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the standard config.json of the text model of a multimodal model."""
    vision, found = document.get("vision_config"), dict(with_default_rope(standard_text(document)))
    if is_object(vision):
        listed = vision.get("deepstack_visual_indexes")
        found[_DEEPSTACK] = len(listed) if is_list(listed) else _USUAL
    return standard_qwen2({"use_sliding_window": False, **found})


_DEFAULTS = {
    "vocabulary": 151936,
    "context": 128000,
    "intermediate": 22016,
    "kv_heads": 32,
    "head_dim": 128,
    "rope_base": 500000.0,
}

FAMILY = replace(
    QWEN3,
    name="qwen3vl",
    model_types={
        "qwen3_vl_text": ModelType(
            class_name="Qwen3VLForConditionalGeneration", defaults=_DEFAULTS
        ),
        "qwen3_vl": ModelType(class_name="Qwen3VLForConditionalGeneration", defaults=_DEFAULTS),
    },
    # The prefix of the text model in multimodal checkpoints, and the image encoder.
    other_prefixes=("model.language_model.",),
    beside=(r"visual\..+",),
    unloaded=find_empty_sections,
    differs=find_unrotated,
    keys=(*QWEN3.keys, *VISION_KEYS),
    standard=standard_vision_text,
)
