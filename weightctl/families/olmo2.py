"""OLMo 2: norms after attention and MLP, and queries and keys normed over all heads together.

Names and keys: transformers' `modeling_olmo2.py`; llama.cpp's `conversion/olmo.py`.
"""

from __future__ import annotations

from weightctl.families.decoder_keys import BIASES, DECODER_KEYS, check_decoder, with_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard

LINES = adapt(
    DECODER,
    {
        "attention_norm": None,
        "attention.q.whole": {},
        "attention.k.whole": {},
        "attention.q_norm.whole": {},
        "attention.k_norm.whole": {},
        "post_attention_norm": {},
        "mlp_norm": None,
        "post_mlp_norm": {},
    },
)

FAMILY = Family(
    name="olmo2",
    model_types={
        "olmo2": ModelType(
            class_name="Olmo2ForCausalLM",
            defaults={"vocabulary": 50304, "norm_epsilon": 1e-5},
        )
    },
    blocks={"pre_norms": False, "post_norms": True, "qk_norm": "whole"},
    heads_fill_hidden=True,
    names=LINES,
    keys=with_keys(DECODER_KEYS, *BIASES[:2]),
    standard=standard,
    checked=check_decoder,
)
