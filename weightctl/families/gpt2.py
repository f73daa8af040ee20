"""GPT-2.

Names and keys: transformers' `modeling_gpt2.py` and `configuration_gpt2.py`; llama.cpp's
`convert_hf_to_gguf.py`.
"""

from __future__ import annotations

from weightctl.families.changes import TRANSPOSED
from weightctl.families.decoder_keys import DECODER_KEYS, PLAIN_HEADS, rename_keys, with_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key, product
from weightctl.families.kinds import ACTIVATION, EPSILON, SIZE, Exactly
from weightctl.families.lines import layer_lines, line
from weightctl.families.rope_keys import ROPE_KEYS

_SCORES = "other scaling of attention scores is not supported"
_TURNED = {"change": TRANSPOSED}

_KEYS = with_keys(
    DECODER_KEYS,
    *PLAIN_HEADS,
    Key(field="intermediate", kind=SIZE, default=product("hidden", 4),
        gguf="{arch}.feed_forward_length", hugging_face="n_inner"),
    Key(field="norm_epsilon", kind=EPSILON, default=1e-5,
        gguf="{arch}.attention.layer_norm_epsilon", hugging_face="layer_norm_epsilon"),
    Key(field="activation", kind=ACTIVATION, default="gelu_tanh", gguf_default="gelu_tanh",
        hugging_face="activation_function"),
    Key(field="is_scaled", kind=Exactly(True, _SCORES), default=True,
        hugging_face="scale_attn_weights"),
    Key(field="is_scaled_by_layer", kind=Exactly(False, _SCORES), default=False,
        hugging_face="scale_attn_by_inverse_layer_idx"),
    without=("experts", "value_dim", *(key.field for key in ROPE_KEYS)),
)  # fmt: skip

FAMILY = Family(
    name="gpt2",
    model_types={
        "gpt2": ModelType(
            class_name="GPT2LMHeadModel",
            defaults={
                "vocabulary": 50257,
                "context": 1024,
                "hidden": 768,
                "layers": 12,
                "heads": 12,
                "tied": True,
            },
        )
    },
    blocks={
        "norm": "layer",
        "position": "learned",
        "gated": False,
        "fused_qkv": True,
        "attention_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
    },
    prefix="transformer.",
    names=(
        line("embedding", hugging_face="transformer.wte"),
        line("position_embedding", hugging_face="transformer.wpe"),
        *layer_lines(
            "transformer.h.{}.",
            {
                "attention_norm": "ln_1",
                "attention.qkv": {"hugging_face": "attn.c_attn", **_TURNED},
                "attention.o": {"hugging_face": "attn.c_proj", **_TURNED},
                "mlp_norm": "ln_2",
                "mlp.up": {"hugging_face": "mlp.c_fc", **_TURNED},
                "mlp.down": {"hugging_face": "mlp.c_proj", **_TURNED},
            },
            bias=True,
        ),
        line("norm", hugging_face="transformer.ln_f", bias=True),
        line("output"),
    ),
    keys=rename_keys(
        _KEYS,
        {"context": "n_positions", "hidden": "n_embd", "layers": "n_layer", "heads": "n_head"},
    ),
)
