"""GPT-J: attention and MLP share a norm, and a part of each head has RoPE with neighboring pairs.

Names and keys: transformers' `modeling_gptj.py`; gguf's `MODEL_ARCH.GPTJ`. llama.cpp does not run
it.
"""

from __future__ import annotations

from weightctl.families.decoder_keys import (
    DECODER_KEYS,
    LAYER_NORM,
    PLAIN_HEADS,
    activation,
    check_decoder,
    rename_keys,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key, product, same
from weightctl.families.kinds import SIZE, Real
from weightctl.families.lines import layer_lines, line
from weightctl.families.rope_keys import ROPE_KEYS

_KEYS = with_keys(
    DECODER_KEYS,
    *PLAIN_HEADS,
    LAYER_NORM,
    activation("gelu_tanh", "gelu_new", key="activation_function"),
    Key(field="intermediate", kind=SIZE, default=product("hidden", 4),
        gguf="{arch}.feed_forward_length", hugging_face="n_inner"),
    Key(field="rope_base", kind=Real(0, 1e12), default=10000.0, gguf_default=10000.0,
        gguf="{arch}.rope.freq_base"),
    Key(field="rope_dimensions", kind=SIZE, default=64, gguf_default=same("head_dim"),
        gguf="{arch}.rope.dimension_count", hugging_face="rotary_dim"),
    without=("value_dim", "rotated_share", *(
        key.field for key in ROPE_KEYS if key.field.startswith("scaling.")
    )),
)  # fmt: skip

FAMILY = Family(
    name="gptj",
    model_types={
        "gptj": ModelType(
            class_name="GPTJForCausalLM",
            defaults={"vocabulary": 50400, "layers": 28, "heads": 16},
        )
    },
    blocks={
        "norm": "layer",
        "parallel": True,
        "shared_norm": True,
        "gated": False,
        "mlp_bias": True,
        "output_bias": True,
        "rope_interleaved": True,
    },
    in_llama_cpp=False,
    prefix="transformer.",
    names=(
        line("embedding", hugging_face="transformer.wte"),
        *layer_lines(
            "transformer.h.{}.",
            {
                "attention_norm": {"hugging_face": "ln_1", "bias": True},
                "attention.q": "attn.q_proj",
                "attention.k": "attn.k_proj",
                "attention.v": "attn.v_proj",
                "attention.o": "attn.out_proj",
                "mlp.up": "mlp.fc_in",
                "mlp.down": "mlp.fc_out",
            },
        ),
        line("norm", hugging_face="transformer.ln_f", bias=True),
        line("output", bias=True),
    ),
    keys=rename_keys(
        _KEYS,
        {
            "context": "n_positions",
            "hidden": "n_embd",
            "layers": "n_layer",
            "heads": "n_head",
            "norm_epsilon": "layer_norm_epsilon",
        },
    ),
    checked=check_decoder,
)
