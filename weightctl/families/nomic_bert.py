"""Nomic's text encoders: a BERT with RoPE and a gated MLP.

Names and keys: transformers' `modeling_nomic_bert.py`, and its `conversion_mapping.py` for the
names in checkpoints; llama.cpp's `models/nomic-bert.cpp`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.bert import FAMILY as BERT
from weightctl.families.decoder_keys import SIZES, activation, check_decoder, with_keys
from weightctl.families.family import ModelType
from weightctl.families.lines import layer_lines, line
from weightctl.families.rope_keys import ROPE_KEYS
from weightctl.families.rope_keys import standard as standard_rope

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FAMILY"]


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with RoPE in the form of transformers 5.

    transformers 5 does not read the config of Nomic's own code.
    """
    if "n_embd" in document:
        raise ValueError(
            "the config has the keys of Nomic's own code (such as `n_embd`), which are not "
            "supported; use a copy of the model that was saved with transformers 5"
        )
    return standard_rope(document)


FAMILY = replace(
    BERT,
    name="nomic_bert",
    gguf="nomic-bert",
    model_types={
        "nomic_bert": ModelType(
            class_name="NomicBertModel",
            defaults={
                **BERT.model_types["bert"].defaults,
                "vocabulary": 30528,
                "context": 2048,
                "rope_base": 1000.0,
            },
        )
    },
    blocks={
        "norm": "layer",
        "norms_after": True,
        "pre_norms": False,
        "embedding_norm": True,
        "fused_qkv": True,
    },
    prefix="nomic_bert.",
    names=(
        line("embedding", hugging_face="embeddings.word_embeddings"),
        line("token_type_embedding", hugging_face="embeddings.token_type_embeddings"),
        line("embedding_norm", hugging_face="emb_ln", bias=True),
        *layer_lines(
            "encoder.layers.{}.",
            {
                "attention.qkv": {"hugging_face": "attn.Wqkv", "bias": False},
                "attention.o": {"hugging_face": "attn.out_proj", "bias": False},
                "attention_norm": {
                    "gguf": "blk.{}.attn_output_norm",
                    "hugging_face": "norm1",
                    "bias": True,
                },
                "mlp.gate": "mlp.fc12",
                "mlp.up": "mlp.fc11",
                "mlp.down": "mlp.fc2",
                "mlp_norm": {
                    "gguf": "blk.{}.layer_output_norm",
                    "hugging_face": "norm2",
                    "bias": True,
                },
            },
        ),
    ),
    keys=(
        *with_keys(
            BERT.keys,
            *(key for key in SIZES if key.field in ("head_dim", "value_dim")),
            activation("silu"),
            without=("positions", "is_decoder", "labels", "label_names"),
        ),
        *ROPE_KEYS,
    ),
    fusions=(),
    spellings={},
    standard=_standard,
    checked=check_decoder,
)
