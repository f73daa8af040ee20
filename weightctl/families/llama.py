"""llama, and the families with the same layers: Mistral, InternLM3, SmolLM, TinyLlama.

Names and keys: transformers' `modeling_llama.py` and `configuration_llama.py`; llama.cpp's
`convert_hf_to_gguf.py` and `llama-model.cpp`.
"""

from __future__ import annotations

from weightctl.families.changes import RopeRows
from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    SLIDING_WINDOW,
    check_decoder,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_factors import rope_factors, with_llama3
from weightctl.families.rope_keys import ROPE_FACTORS, standard_of

__all__ = ["FAMILY", "ROPE_ROWS"]

# In GGUF, the two rows of each rotated pair are neighbors.
ROPE_ROWS = {
    "attention.q": {"change": RopeRows("heads")},
    "attention.k": {"change": RopeRows("kv_heads")},
}

FAMILY = Family(
    name="llama",
    model_types={
        "llama": ModelType(class_name="LlamaForCausalLM", fixed={"sliding_window": None}),
        "mistral": ModelType(
            class_name="MistralForCausalLM",
            defaults={
                "context": 131072,
                "intermediate": 14336,
                "kv_heads": 8,
                "sliding_window": 4096,
            },
            fixed={"attention_bias": False, "attention_output_bias": False, "mlp_bias": False},
        ),
        # transformers and GGUF treat it as a llama.
        "internlm3": ModelType(
            class_name="LlamaForCausalLM",
            defaults={
                "vocabulary": 128512,
                "context": 32768,
                "intermediate": 10240,
                "layers": 48,
                "kv_heads": 2,
                "head_dim": 128,
                "norm_epsilon": 1e-5,
            },
            fixed={"sliding_window": None},
        ),
    },
    names=adapt(
        DECODER,
        {**ROPE_ROWS, "rope_factors": {"made": rope_factors, "add_fields": with_llama3}},
    ),
    keys=with_keys(
        DECODER_KEYS,
        *BIASES,
        ROPE_FACTORS,
        SLIDING_WINDOW,
    ),
    fusions=(qkv_form(),),
    # Frequencies of RoPE in the first GGUF files.
    beside=(r"blk\.\d+\.attn_rot_embd\.weight",),
    # The names in InternLM's own code.
    standard=standard_of({"attention_bias": "qkv_bias", "mlp_bias": "bias"}),
    checked=check_decoder,
)  # fmt: skip
