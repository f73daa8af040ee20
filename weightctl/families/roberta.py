"""RoBERTa: a BERT whose position table begins with rows that are never looked up.

Names and keys: transformers' `modeling_roberta.py`; llama.cpp's `conversion/bert.py`, which treats
it as a bert without those rows, with a byte-level tokenizer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.bert import FAMILY as BERT
from weightctl.families.bert import NAMES
from weightctl.families.changes import LeadingRows
from weightctl.families.decoder_keys import with_keys
from weightctl.families.family import ModelType
from weightctl.families.heads import head_lines, with_prefix
from weightctl.families.keys import Key
from weightctl.families.kinds import SIZE, WholeNumber
from weightctl.families.lines import adapt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields
    from weightctl.weights.metadata import MetadataValue

_TOKENIZER = "tokenizer.ggml.model"


def _count_rows(config: Any) -> int:
    """Return how many rows precede that of the first position; the last of them is for padding."""
    return int(config.padding) + 1


def _find_context(fields: Fields) -> int:
    found: int = fields["table_rows"] - fields["padding"] - 1
    if found < 1:
        raise ValueError(
            f"(the number of positions) would be {found}: the table of position embeddings has "
            f"{fields['table_rows']} rows (`max_position_embeddings`), and the first "
            f"{fields['padding'] + 1} rows (up to row `pad_token_id`) are reserved"
        )
    return found


def _find_rows(fields: Fields) -> int:
    return int(fields["context"] + fields["padding"] + 1)


def has_tokenizer(metadata: Mapping[str, MetadataValue], model: str) -> bool:
    """Whether GGUF's metadata have a tokenizer of this type."""
    return _TOKENIZER in metadata and metadata[_TOKENIZER].content == model


def _is_of(metadata: Mapping[str, MetadataValue]) -> bool:
    return has_tokenizer(metadata, "gpt2")


_POSITIONS = (
    Key(field="padding", kind=WholeNumber(0, SIZE.most - 1), default=1, gguf_default=1,
        gguf="tokenizer.ggml.padding_token_id", hugging_face="pad_token_id"),
    # `max_position_embeddings` counts all rows of the position table.
    Key(field="context", kind=SIZE, gguf="{arch}.context_length"),
    Key(field="table_rows", kind=SIZE, default=512, gguf_default=_find_rows,
        hugging_face="max_position_embeddings", written=True),
    Key(field="context", kind=SIZE, default=_find_context),
)  # fmt: skip

FAMILY = replace(
    BERT,
    name="roberta",
    gguf="bert",
    is_of=_is_of,
    model_types={
        "roberta": ModelType(
            class_name="RobertaModel",
            defaults={**BERT.model_types["bert"].defaults, "vocabulary": 50265},
        )
    },
    prefix="roberta.",
    names=(
        *with_prefix(
            adapt(NAMES, {"position_embedding": {"change": LeadingRows(_count_rows)}}), "roberta."
        ),
        *head_lines("classifier.dense", "classifier.out_proj"),
    ),
    keys=(*_POSITIONS, *with_keys(BERT.keys, without=("context",))),
    beside=(r"pooler\..*", r"lm_head\..*"),
    spellings={},
)
