"""BERT, and the sentence encoders built like it: MiniLM, bge.

Names and keys: transformers' `modeling_bert.py` and `configuration_bert.py`; llama.cpp's
`convert_hf_to_gguf.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from weightctl.families.family import Family, ModelType, Name, layer_part, qkv_form
from weightctl.families.keys import Key, RowCount, quotient
from weightctl.families.kinds import ACTIVATION, EPSILON, HEADS, LAYERS, SIZE, Exactly

__all__ = ["FAMILY", "BertConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig:
    """The sizes of a BERT."""

    vocabulary: int
    context: int
    token_types: int
    hidden: int
    layers: int
    heads: int
    intermediate: int
    norm_epsilon: float
    activation: str = "gelu"


_part = partial(layer_part, "encoder.layer.{}.", bias=True)

_NAMES = (
    Name(module="embedding", gguf="token_embd", hugging_face="embeddings.word_embeddings"),
    Name(module="position_embedding", gguf="position_embd",
         hugging_face="embeddings.position_embeddings", is_float32=True),
    Name(module="token_type_embedding", gguf="token_types",
         hugging_face="embeddings.token_type_embeddings", is_float32=True),
    Name(module="embedding_norm", gguf="token_embd_norm", hugging_face="embeddings.LayerNorm",
         bias=True, is_float32=True),
    _part("attention.q", "attn_q", "attention.self.query"),
    _part("attention.k", "attn_k", "attention.self.key"),
    _part("attention.v", "attn_v", "attention.self.value"),
    _part("attention.o", "attn_output", "attention.output.dense"),
    _part("attention_norm", "attn_output_norm", "attention.output.LayerNorm", is_float32=True),
    _part("mlp.up", "ffn_up", "intermediate.dense"),
    _part("mlp.down", "ffn_down", "output.dense"),
    _part("mlp_norm", "layer_output_norm", "output.LayerNorm", is_float32=True),
)  # fmt: skip

_DECODERS = "BERT decoders are not supported"

_KEYS = (
    Key(field="vocabulary", kind=SIZE, default=30522, gguf="{arch}.vocab_size",
        hugging_face="vocab_size", seen=RowCount("token_embd.weight")),
    Key(field="context", kind=SIZE, default=512, gguf="{arch}.context_length",
        hugging_face="max_position_embeddings"),
    Key(field="token_types", kind=SIZE, default=2, gguf="tokenizer.ggml.token_type_count",
        hugging_face="type_vocab_size", seen=RowCount("token_types.weight")),
    Key(field="hidden", kind=SIZE, default=768, gguf="{arch}.embedding_length",
        hugging_face="hidden_size"),
    Key(field="layers", kind=LAYERS, default=12, gguf="{arch}.block_count",
        hugging_face="num_hidden_layers"),
    Key(field="heads", kind=HEADS, default=12, gguf="{arch}.attention.head_count",
        hugging_face="num_attention_heads"),
    Key(field="head_dim", kind=SIZE, default=quotient("hidden", "heads"),
        gguf_default=quotient("hidden", "heads")),
    Key(field="intermediate", kind=SIZE, default=3072, gguf="{arch}.feed_forward_length",
        hugging_face="intermediate_size"),
    Key(field="norm_epsilon", kind=EPSILON, default=1e-12,
        gguf="{arch}.attention.layer_norm_epsilon", hugging_face="layer_norm_eps"),
    Key(field="activation", kind=ACTIVATION, default="gelu", gguf_default="gelu",
        hugging_face="hidden_act"),
    Key(field="positions", kind=Exactly("absolute", "relative positions are not supported"),
        default="absolute", hugging_face="position_embedding_type"),
    Key(field="is_decoder", kind=Exactly(False, _DECODERS), default=False,
        hugging_face="is_decoder"),
    Key(field="is_causal", kind=Exactly(False, _DECODERS), gguf_default=False,
        gguf="{arch}.attention.causal", written=True),
)  # fmt: skip


FAMILY = Family(
    name="bert",
    model_types={"bert": ModelType(class_name="BertModel")},
    config="weightctl.families.bert:BertConfig",
    module="weightctl.nn.models.bert:Bert",
    prefix="bert.",
    names=_NAMES,
    keys=_KEYS,
    fusions=(qkv_form(lambda config: (config.hidden,) * 3),),
    # Heads for the tasks that it was trained on.
    beside=(r"pooler\..*", r"cls\..*"),
    # As checkpoints call them that were TensorFlow's.
    spellings={"gamma": "weight", "beta": "bias"},
)
