"""GPT-2.

Names and keys: transformers' `modeling_gpt2.py` and `configuration_gpt2.py`; llama.cpp's
`convert_hf_to_gguf.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from weightctl.families.changes import TRANSPOSED
from weightctl.families.family import Family, ModelType, Name, layer_part
from weightctl.families.keys import IsAbsent, Key, RowCount, product, quotient
from weightctl.families.kinds import ACTIVATION, CAUSAL, EPSILON, FLAG, HEADS, LAYERS, SIZE, Exactly

__all__ = ["FAMILY", "Gpt2Config"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpt2Config:
    """The sizes of a GPT-2.

    `transposed` says that the weights of its layers are `(in, out)`, as in Hugging Face's
    checkpoints. A `tied` model has no output weight of its own.
    """

    vocabulary: int
    context: int
    hidden: int
    layers: int
    heads: int
    intermediate: int
    norm_epsilon: float
    activation: str = "gelu_tanh"
    transposed: bool = False
    tied: bool = True


_part = partial(layer_part, "transformer.h.{}.", bias=True)

_NAMES = (
    Name(module="embedding", gguf="token_embd", hugging_face="transformer.wte"),
    Name(module="position_embedding", gguf="position_embd", hugging_face="transformer.wpe",
         is_float32=True),
    _part("attention_norm", "attn_norm", "ln_1", is_float32=True),
    _part("attention.qkv", "attn_qkv", "attn.c_attn", change=TRANSPOSED),
    _part("attention.o", "attn_output", "attn.c_proj", change=TRANSPOSED),
    _part("mlp_norm", "ffn_norm", "ln_2", is_float32=True),
    _part("mlp.up", "ffn_up", "mlp.c_fc", change=TRANSPOSED),
    _part("mlp.down", "ffn_down", "mlp.c_proj", change=TRANSPOSED),
    Name(module="norm", gguf="output_norm", hugging_face="transformer.ln_f", bias=True,
         is_float32=True),
    Name(module="output", gguf="output", hugging_face="lm_head", unless="tied"),
)  # fmt: skip

_SCORES = "other scaling of attention scores is not supported"

_KEYS = (
    Key(field="vocabulary", kind=SIZE, default=50257, gguf="{arch}.vocab_size",
        hugging_face="vocab_size", seen=RowCount("token_embd.weight")),
    Key(field="context", kind=SIZE, default=1024, gguf="{arch}.context_length",
        hugging_face="n_positions"),
    Key(field="hidden", kind=SIZE, default=768, gguf="{arch}.embedding_length",
        hugging_face="n_embd"),
    Key(field="layers", kind=LAYERS, default=12, gguf="{arch}.block_count",
        hugging_face="n_layer"),
    Key(field="heads", kind=HEADS, default=12, gguf="{arch}.attention.head_count",
        hugging_face="n_head"),
    Key(field="head_dim", kind=SIZE, default=quotient("hidden", "heads"),
        gguf_default=quotient("hidden", "heads")),
    Key(field="intermediate", kind=SIZE, default=product("hidden", 4),
        gguf="{arch}.feed_forward_length", hugging_face="n_inner"),
    Key(field="norm_epsilon", kind=EPSILON, default=1e-5,
        gguf="{arch}.attention.layer_norm_epsilon", hugging_face="layer_norm_epsilon"),
    Key(field="activation", kind=ACTIVATION, default="gelu_tanh", gguf_default="gelu_tanh",
        hugging_face="activation_function"),
    Key(field="transposed", kind=FLAG, default=True, gguf_default=False),
    Key(field="tied", kind=FLAG, default=True, hugging_face="tie_word_embeddings",
        seen=IsAbsent("output.weight")),
    Key(field="is_scaled", kind=Exactly(True, _SCORES), default=True,
        hugging_face="scale_attn_weights"),
    Key(field="is_scaled_by_layer", kind=Exactly(False, _SCORES), default=False,
        hugging_face="scale_attn_by_inverse_layer_idx"),
    Key(field="has_cross_attention", default=False, hugging_face="add_cross_attention",
        kind=Exactly(False, "cross attention is not supported")),
    Key(field="is_causal", kind=CAUSAL, gguf_default=True, gguf="{arch}.attention.causal",
        written=False),
)  # fmt: skip

FAMILY = Family(
    name="gpt2",
    model_types={"gpt2": ModelType(class_name="GPT2LMHeadModel")},
    config="weightctl.families.gpt2:Gpt2Config",
    module="weightctl.nn.models.gpt2:Gpt2",
    prefix="transformer.",
    names=_NAMES,
    keys=_KEYS,
)
