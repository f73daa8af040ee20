"""CamemBERT: a RoBERTa with a unigram tokenizer that begins with fairseq's tokens.

Names and keys: transformers' `modeling_camembert.py`; llama.cpp's `conversion/bert.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.families.family import ModelType
from weightctl.families.roberta import FAMILY as ROBERTA
from weightctl.families.roberta import has_tokenizer
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.metadata import MetadataValue

_TOKENS, _FIRST = "tokenizer.ggml.tokens", "<s>NOTUSED"


def _is_of(metadata: Mapping[str, MetadataValue]) -> bool:
    if not has_tokenizer(metadata, "t5") or _TOKENS not in metadata:
        return False
    tokens = metadata[_TOKENS].content
    return is_sequence(tokens) and len(tokens) > 0 and tokens[0] == _FIRST


FAMILY = replace(
    ROBERTA,
    name="camembert",
    is_of=_is_of,
    model_types={
        "camembert": ModelType(
            class_name="CamembertModel",
            defaults={**ROBERTA.model_types["roberta"].defaults, "vocabulary": 30522},
        )
    },
)
