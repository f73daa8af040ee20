"""Nemotron 3 and 4, Minitron: LayerNorm weights stored minus 1, and a plain MLP of squared ReLUs.

Names and keys: transformers' `modeling_nemotron.py`; llama.cpp's `conversion/nemotron.py`.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.changes import PLUS_ONE
from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    LAYER_NORM,
    PARTIAL_ROPE,
    activation,
    check_decoder,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard

_NORM = {"bias": True, "change": PLUS_ONE}

FAMILY = Family(
    name="nemotron",
    model_types={
        "nemotron": ModelType(
            class_name="NemotronForCausalLM",
            defaults={
                "vocabulary": 256000,
                "context": 4096,
                "hidden": 6144,
                "intermediate": 24576,
                "heads": 48,
                "head_dim": 128,
                "rotated_share": 0.5,
            },
        )
    },
    blocks={"norm": "layer", "gated": False},
    heads_fill_hidden=True,
    names=adapt(
        DECODER,
        {"attention_norm": _NORM, "mlp_norm": _NORM, "mlp.gate": None, "norm": _NORM},
    ),
    keys=with_keys(
        DECODER_KEYS,
        replace(LAYER_NORM, hugging_face="norm_eps"),
        PARTIAL_ROPE,
        activation("relu2"),
        *BIASES,
    ),
    standard=standard,
    checked=check_decoder,
)
