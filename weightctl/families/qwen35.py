"""Qwen3.5, dense models, and the text model of its multimodal models.

Names and keys: transformers' `modeling_qwen3_5.py` and `configuration_qwen3_5.py`; llama.cpp's
`models/qwen35.cpp` and `conversion/qwen.py`. RoPE of images has sections for time, height and
width; in texts all three are the position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import with_keys
from weightctl.families.delta import (
    BLOCKS,
    DELTA_DEFAULTS,
    DELTA_KEYS,
    DELTA_MTP,
    DELTA_MTP_LINES,
    GATED_QUERIES,
    check_delta,
    delta_lines,
    find_unlike_delta,
    standard_delta,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.mtp import mtp_keys, with_mtp_lines
from weightctl.families.multimodal import standard_text
from weightctl.families.rope_sections import (
    find_empty_sections,
    find_unrotated,
    section_keys,
)
from weightctl.families.tiled_heads import TILED_CHANGES, TILED_FORMS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

# The prefix of the text model in multimodal checkpoints, and the image encoder.
MULTIMODAL_PREFIXES = ("model.language_model.",)
MULTIMODAL_PARTS = (r"visual\..+",)


QWEN35_KEYS = with_keys(
    DELTA_KEYS,
    *section_keys(11, 11, 10, "interleaved"),
)


def standard_delta_text(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the standard config.json of the text model, which multimodal models contain."""
    return standard_delta(standard_text(document))


def find_unlike_qwen35(fields: Fields) -> str | None:
    """Return why llama.cpp does not load or run a model, None if it does."""
    return find_empty_sections(fields) or find_unlike_delta(fields)


_DEFAULTS = {
    **DELTA_DEFAULTS,
    "vocabulary": 248320,
    "hidden": 4096,
    "layers": 32,
    "kv_heads": 4,
    "intermediate": 12288,
}

FAMILY = Family(
    name="qwen35",
    model_types={
        "qwen3_5_text": ModelType(class_name="Qwen3_5ForCausalLM", defaults=_DEFAULTS),
        "qwen3_5": ModelType(class_name="Qwen3_5ForCausalLM", defaults=_DEFAULTS),
    },
    blocks=BLOCKS,
    other_prefixes=MULTIMODAL_PREFIXES,
    beside=MULTIMODAL_PARTS,
    unloaded=find_unlike_qwen35,
    differs=find_unrotated,
    names=with_mtp_lines(delta_lines(TILED_CHANGES), DELTA_MTP_LINES),
    keys=mtp_keys(QWEN35_KEYS, "mtp_num_hidden_layers", most=1),
    mtp=DELTA_MTP,
    fusions=(*GATED_QUERIES, *TILED_FORMS),
    standard=standard_delta_text,
    checked=check_delta,
)
