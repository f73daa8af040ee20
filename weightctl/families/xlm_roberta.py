"""XLM-RoBERTa, and the sentence encoders built like it: bge-m3, multilingual-e5.

Names and keys: transformers' `modeling_xlm_roberta.py`; llama.cpp's `conversion/bert.py`, which
treats it as a bert with a unigram tokenizer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.families.family import ModelType
from weightctl.families.roberta import FAMILY as ROBERTA
from weightctl.families.roberta import has_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.metadata import MetadataValue


def _is_of(metadata: Mapping[str, MetadataValue]) -> bool:
    return has_tokenizer(metadata, "t5")


FAMILY = replace(
    ROBERTA,
    name="xlm_roberta",
    is_of=_is_of,
    model_types={
        "xlm-roberta": ModelType(
            class_name="XLMRobertaModel",
            defaults={**ROBERTA.model_types["roberta"].defaults, "vocabulary": 30522},
        )
    },
)
