"""BERT, and the sentence encoders built like it: MiniLM, bge.

Names and keys: transformers' `modeling_bert.py` and `configuration_bert.py`; llama.cpp's
`convert_hf_to_gguf.py`.

A sequence classifier reads the output of the pooler for the first token. llama.cpp's own script
leaves the pooler out; weightctl writes it as the first projection of llama.cpp's head, which has
the same activation, so that llama.cpp computes the same as transformers.
"""

from __future__ import annotations

from weightctl.families.decoder_keys import DECODER_KEYS, PLAIN_HEADS, with_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.heads import (
    HEAD_KEYS,
    check_head,
    complete_head,
    head_lines,
    reading_head,
    with_prefix,
)
from weightctl.families.keys import Key, RowCount
from weightctl.families.kinds import ACTIVATION, EPSILON, SIZE, Exactly
from weightctl.families.lines import layer_lines, line
from weightctl.families.rope_keys import ROPE_KEYS

_DECODERS = "BERT decoders are not supported"

_KEYS = with_keys(
    DECODER_KEYS,
    Key(field="context", kind=SIZE, default=512, gguf="{arch}.context_length",
        hugging_face="max_position_embeddings"),
    *PLAIN_HEADS,
    Key(field="norm_epsilon", kind=EPSILON, default=1e-12,
        gguf="{arch}.attention.layer_norm_epsilon", hugging_face="layer_norm_eps"),
    Key(field="activation", kind=ACTIVATION, default="gelu", gguf_default="gelu",
        hugging_face="hidden_act"),
    Key(field="token_types", kind=SIZE, default=2, gguf="tokenizer.ggml.token_type_count",
        hugging_face="type_vocab_size", seen=RowCount("token_types.weight")),
    Key(field="positions", kind=Exactly("absolute", "relative positions are not supported"),
        default="absolute", hugging_face="position_embedding_type"),
    Key(field="is_decoder", kind=Exactly(False, _DECODERS), default=False,
        hugging_face="is_decoder"),
    Key(field="is_causal", kind=Exactly(False, _DECODERS), gguf_default=False,
        gguf="{arch}.attention.causal", written=True),
    without=("experts", "value_dim", "tied", *(key.field for key in ROPE_KEYS)),
)  # fmt: skip

NAMES = (
    line("embedding", hugging_face="embeddings.word_embeddings"),
    line("position_embedding", hugging_face="embeddings.position_embeddings"),
    line("token_type_embedding", hugging_face="embeddings.token_type_embeddings"),
    line("embedding_norm", hugging_face="embeddings.LayerNorm", bias=True),
    *layer_lines(
        "encoder.layer.{}.",
        {
            "attention.q": "attention.self.query",
            "attention.k": "attention.self.key",
            "attention.v": "attention.self.value",
            "attention.o": "attention.output.dense",
            "attention_norm": {
                "gguf": "blk.{}.attn_output_norm",
                "hugging_face": "attention.output.LayerNorm",
            },
            "mlp.up": "intermediate.dense",
            "mlp.down": "output.dense",
            "mlp_norm": {
                "gguf": "blk.{}.layer_output_norm",
                "hugging_face": "output.LayerNorm",
            },
        },
        bias=True,
    ),
)

FAMILY = Family(
    name="bert",
    model_types={
        "bert": ModelType(
            class_name="BertModel",
            defaults={
                "vocabulary": 30522,
                "hidden": 768,
                "layers": 12,
                "heads": 12,
                "intermediate": 3072,
            },
        )
    },
    config="weightctl.families.encoder:EncoderConfig",
    module="weightctl.nn.models.encoder:TextEncoder",
    blocks={
        "norm": "layer",
        "norms_after": True,
        "pre_norms": False,
        "embedding_norm": True,
        "position": "learned",
        "gated": False,
        "attention_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
    },
    prefix="bert.",
    names=(*with_prefix(NAMES, "bert."), *head_lines("bert.pooler.dense", "classifier")),
    keys=(*_KEYS, *HEAD_KEYS),
    fusions=(qkv_form(),),
    # Heads for the training tasks.
    beside=(r"pooler\..*", r"cls\..*"),
    # The names in checkpoints that were converted from TensorFlow.
    spellings={"gamma": "weight", "beta": "bias"},
    standard=reading_head(dict),
    completed=complete_head,
    checked=check_head,
)
