"""BitNet: a llama with norms before the output projection and before the last one of the MLP.

Names and keys: transformers' `modeling_bitnet.py`; llama.cpp's `models/bitnet.cpp`, which uses the
activation of the first models, `silu`, and always the embedding as the output. Weights are used as
they are stored: checkpoints whose weights transformers would quantize while loading are refused.
"""

from __future__ import annotations

from weightctl.families.decoder_keys import BIASES, DECODER_KEYS, check_decoder, with_keys
from weightctl.families.family import Family, ModelType, Name, WeightAxes
from weightctl.families.keys import Key
from weightctl.families.kinds import ACTIVATION, FLAG, Exactly
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard

_ONLINE = "weights that are quantized when they are loaded are not supported"


_LINES = adapt(
    DECODER,
    {
        "attention.q.whole": {},
        "attention.k.whole": {},
        "attention.v": {"axes": WeightAxes(("all_keys",), ("hidden",))},
        "mlp.gate": {"axes": WeightAxes(("intermediate",), ("hidden",))},
        "mlp.up": {"axes": WeightAxes(("intermediate",), ("hidden",))},
    },
)
# Every rank norms the outputs of all heads, and all elements of the MLP.
_NORMS = (
    Name(
        module="layers.{}.attention.inner_norm",
        gguf="blk.{}.attn_sub_norm",
        hugging_face="model.layers.{}.self_attn.attn_sub_norm",
        axes=WeightAxes(("all_queries",)),
        is_float32=True,
    ),
    Name(
        module="layers.{}.mlp.inner_norm",
        gguf="blk.{}.ffn_sub_norm",
        hugging_face="model.layers.{}.mlp.ffn_sub_norm",
        axes=WeightAxes(("intermediate",)),
        is_float32=True,
    ),
)

FAMILY = Family(
    name="bitnet",
    model_types={
        "bitnet": ModelType(
            class_name="BitNetForCausalLM",
            defaults={
                "vocabulary": 128256,
                "hidden": 2560,
                "layers": 30,
                "heads": 20,
                "kv_heads": 5,
                "intermediate": 6912,
                "norm_epsilon": 1e-5,
                "rope_base": 500000.0,
            },
        )
    },
    blocks={"inner_norms": True},
    heads_fill_hidden=True,
    names=(*_LINES[:-2], *_NORMS, *_LINES[-2:]),
    keys=with_keys(
        DECODER_KEYS,
        *BIASES[:2],
        Key(field="activation", kind=ACTIVATION, default="relu2", gguf_default="silu",
            hugging_face="hidden_act"),
        Key(field="tied", kind=FLAG, default=False, gguf_default=True,
            hugging_face="tie_word_embeddings"),
        Key(field="quantization", kind=Exactly("offline", _ONLINE), default="offline",
            hugging_face="quantization_config.quantization_mode", written=False),
    ),
    standard=standard,
    checked=check_decoder,
)  # fmt: skip
