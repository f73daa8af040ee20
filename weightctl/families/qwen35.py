"""Qwen3.5, dense models, and the text model of its multimodal models.

Names and keys: transformers' `modeling_qwen3_5.py` and `configuration_qwen3_5.py`; llama.cpp's
`models/qwen35.cpp` and `conversion/qwen.py`. RoPE of images has sections for time, height and
width; in texts all three are the position. Layers of multi-token prediction in checkpoints are
left out, as in transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.decoder_keys import with_keys
from weightctl.families.delta import (
    BLOCKS,
    DELTA_DEFAULTS,
    DELTA_KEYS,
    GATED_QUERIES,
    check_delta,
    delta_lines,
    find_unlike_delta,
    standard_delta,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import Exactly, WholeNumber, show_value
from weightctl.families.layer_rope import object_of
from weightctl.families.tiled_heads import TILED_CHANGES, TILED_FORMS
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

__all__ = [
    "FAMILY",
    "MULTIMODAL_PARTS",
    "MULTIMODAL_PREFIXES",
    "QWEN35_KEYS",
    "find_unlike_qwen35",
    "standard_text",
]

_SECTION = WholeNumber(0, 1 << 16)
_SECTIONS = (11, 11, 10)
_INTERLEAVED = "transformers and llama.cpp always interleave the sections of RoPE in this family"
# The prefix of the text model in multimodal checkpoints, and the image encoder.
MULTIMODAL_PREFIXES = ("model.language_model.",)
MULTIMODAL_PARTS = (r"visual\..+",)


class _RopeSections(NamedTuple):
    """The numbers of pairs for time, height and width; `length` numbers are written."""

    length: int

    def read(self, content: object) -> tuple[int, ...]:
        """Return the three numbers; a fourth one must be 0."""
        if not is_sequence(content) or len(content) not in {3, 4} or any(content[3:]):
            raise ValueError(f"is {show_value(content)}; it must be a list of three integers")
        return tuple(_SECTION.read(each) for each in content[:3])

    @property
    def gguf_type(self) -> str:
        """The type of an array of integers."""
        return "array[i32]"

    def write(self, value: tuple[int, ...]) -> list[int]:
        """Return the numbers, with zeros after them."""
        return [*value, *[0] * (self.length - len(value))]


def _find_sections(fields: Fields) -> tuple[int, ...]:
    del fields
    return _SECTIONS


def _is_interleaved(fields: Fields) -> bool:
    del fields
    return True


QWEN35_KEYS = with_keys(
    DELTA_KEYS,
    Key(field="rope_sections", kind=_RopeSections(3), default=_find_sections, written=True,
        hugging_face="rope_parameters.mrope_section"),
    Key(field="rope_sections", kind=_RopeSections(4), gguf="{arch}.rope.dimension_sections"),
    Key(field="interleaved_sections", kind=Exactly(True, _INTERLEAVED), default=_is_interleaved,
        hugging_face="rope_parameters.mrope_interleaved", written=True),
)  # fmt: skip


def find_unlike_qwen35(fields: Fields) -> str | None:
    """Return why llama.cpp does not load or run a model, None if it does."""
    sections = fields["rope_sections"]
    total = sum(sections)
    # The pairs take turns; llama.cpp does not rotate those that no section contains.
    places = (pair % max(total, 1) for pair in range(fields["rope_dimensions"] // 2))
    if not total or any(place >= 3 * sections[place % 3] for place in places):
        return "its sections of RoPE (`mrope_section`) do not contain all rotated pairs"
    return find_unlike_delta(fields)


def standard_text(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the standard config.json of the text model, which multimodal models contain."""
    if not document["model_type"].endswith("_text"):
        # The output belongs to the whole model, and so does the key that states that it is tied.
        tied = "tie_word_embeddings"
        outer = {tied: document[tied]} if tied in document else {}
        document = {**object_of(document, "text_config"), **outer}
    return standard_delta(document)


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
    has_further_layers=True,
    unloaded=find_unlike_qwen35,
    names=delta_lines(TILED_CHANGES),
    keys=QWEN35_KEYS,
    fusions=(*GATED_QUERIES, *TILED_FORMS),
    standard=standard_text,
    checked=check_delta,
)
