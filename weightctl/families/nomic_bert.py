"""Nomic's text encoders: a BERT with RoPE and a gated MLP.

Names and keys: transformers' `modeling_nomic_bert.py`, and its `conversion_mapping.py` for the
names in checkpoints; llama.cpp's `models/nomic-bert.cpp` and `conversion/bert.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.bert import FAMILY as BERT
from weightctl.families.decoder_keys import SIZES, activation, check_decoder, with_keys
from weightctl.families.family import ModelType
from weightctl.families.kinds import show_value
from weightctl.families.lines import layer_lines, line
from weightctl.families.rope_keys import ROPE_KEYS
from weightctl.families.rope_keys import standard as standard_rope

if TYPE_CHECKING:
    from collections.abc import Mapping

# The keys of Nomic's own code, which the published models have.
_CALLED = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
# The other keys of Nomic's code that change what is computed, and their only supported values.
_ONLY: dict[str, tuple[Any, ...]] = {
    "activation_function": ("swiglu",),
    "rotary_emb_fraction": (1.0,),
    "rotary_emb_scale_base": (None,),
    "moe_every_n_layers": (None, 0),
    **dict.fromkeys(
        ("causal", "prenorm", "parallel_block", "use_rms_norm", "qkv_proj_bias", "mlp_fc1_bias",
         "mlp_fc2_bias", "rotary_emb_interleaved"),
        (False, None),
    ),
}  # fmt: skip


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in the form of transformers 5, also that of Nomic's own code.

    Nomic's code scales RoPE only for texts longer than `max_trained_positions`, as llama.cpp's
    converter assumes, too.
    """
    if "n_embd" not in document:
        return standard_rope(document)
    for key, values in _ONLY.items():
        if document.get(key, values[0]) not in values:
            raise ValueError(f"`{key}` is {show_value(document[key])}, which is not supported")
    made = dict(document) | {new: document[old] for old, new in _CALLED.items() if old in document}
    if made.get("intermediate_size") is None and type(made["hidden_size"]) is int:
        made["intermediate_size"] = 4 * made["hidden_size"]
    trained, given = document.get("max_trained_positions"), made.get("max_position_embeddings")
    if type(trained) is int and type(given) is int:
        made["max_position_embeddings"] = min(trained, given)
    return standard_rope(made)


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
