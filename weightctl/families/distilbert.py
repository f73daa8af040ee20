"""DistilBERT: a BERT without token types, and with other tensor names.

Names and keys: transformers' `modeling_distilbert.py`; llama.cpp's `conversion/bert.py`, which
treats it as a bert without `token_types`. DistilBERT's classifiers have a ReLU, which llama.cpp's
heads do not support.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.families.bert import FAMILY as BERT
from weightctl.families.decoder_keys import rename_keys, with_keys
from weightctl.families.family import ModelType
from weightctl.families.heads import head_lines, with_prefix
from weightctl.families.keys import Key
from weightctl.families.kinds import EPSILON, Exactly
from weightctl.families.lines import layer_lines, line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields
    from weightctl.weights.metadata import MetadataValue

_COUNT = "tokenizer.ggml.token_type_count"
_EPSILON = 1e-12

_KEYS = with_keys(
    rename_keys(
        BERT.keys,
        {"hidden": "dim", "layers": "n_layers", "heads": "n_heads", "intermediate": "hidden_dim",
         "activation": "activation"},
    ),
    # transformers uses this value for all models.
    Key(field="norm_epsilon", kind=Exactly(_EPSILON, f"transformers always uses {_EPSILON:g}"),
        default=_EPSILON),
    Key(field="norm_epsilon", kind=EPSILON, gguf="{arch}.attention.layer_norm_epsilon"),
    # llama.cpp requires a count.
    Key(field="counted_types", kind=Exactly(1, "there are no types of tokens"), gguf_default=1,
        gguf=_COUNT, written=True),
    without=("token_types", "positions", "is_decoder"),
)  # fmt: skip

_NAMES = (
    line("embedding", hugging_face="embeddings.word_embeddings"),
    line("position_embedding", hugging_face="embeddings.position_embeddings"),
    line("embedding_norm", hugging_face="embeddings.LayerNorm", bias=True),
    *layer_lines(
        "transformer.layer.{}.",
        {
            "attention.q": "attention.q_lin",
            "attention.k": "attention.k_lin",
            "attention.v": "attention.v_lin",
            "attention.o": "attention.out_lin",
            "attention_norm": {
                "gguf": "blk.{}.attn_output_norm",
                "hugging_face": "sa_layer_norm",
            },
            "mlp.up": "ffn.lin1",
            "mlp.down": "ffn.lin2",
            "mlp_norm": {
                "gguf": "blk.{}.layer_output_norm",
                "hugging_face": "output_layer_norm",
            },
        },
        bias=True,
    ),
)


def _is_of(metadata: Mapping[str, MetadataValue]) -> bool:
    return _COUNT in metadata and metadata[_COUNT].content == 1


def _find_head(fields: Fields) -> str | None:
    return "it uses tanh in the classifier in place of ReLU" if fields["labels"] else None


FAMILY = replace(
    BERT,
    name="distilbert",
    gguf="bert",
    is_of=_is_of,
    lacks="token_types.weight",
    model_types={
        "distilbert": ModelType(
            class_name="DistilBertModel",
            defaults={**BERT.model_types["bert"].defaults, "layers": 6},
        )
    },
    prefix="distilbert.",
    blocks={**BERT.blocks, "head_activation": "relu"},
    names=(*with_prefix(_NAMES, "distilbert."), *head_lines("pre_classifier", "classifier")),
    keys=_KEYS,
    differs=_find_head,
    beside=(r"vocab_\w+\..*",),
    spellings={},
)
