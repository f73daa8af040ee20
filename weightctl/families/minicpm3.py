"""MiniCPM3: a MiniCPM with latent attention, whose RoPE pairs the two halves of a head.

Names and keys: transformers' `modeling_minicpm3.py`; llama.cpp's `models/minicpm3.cpp`, which
assumes the three factors of the published model. In both conventions, each head has the rows of its
keys before those of its values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.families.decoder_keys import DECODER_KEYS, SIZES, activation
from weightctl.families.deepseek_v2 import NO_BIASES, NO_MLP_BIASES
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key, quotient, same
from weightctl.families.kinds import Exactly
from weightctl.families.latent import (
    LATENT_DECODER,
    LATENT_SIZES,
    check_latent,
    joined_form,
    latent_keys,
)
from weightctl.families.lines import adapt
from weightctl.families.rope_factors import LONGROPE_LINES
from weightctl.families.rope_keys import IN_SCALING, LONG_ROPE_FACTORS, LONGROPE_KEYS, standard

if TYPE_CHECKING:
    from weightctl.families.keys import Fields

_SCALES = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
_WIDTH = quotient("hidden", "heads")
# llama.cpp computes the keys and values of all heads, and has other keys for their sizes.
_SIZES = tuple(
    replace(key, gguf=key.gguf.replace("_mla", ""))
    for key in LATENT_SIZES
    if key.field not in {"latent_heads", "latent_key", "latent_value", "kv_heads"}
)
_KV_HEADS = next(key for key in SIZES if key.field == "kv_heads")
_VALUES = replace(
    next(key for key in _SIZES if key.field == "value_dimensions"),
    default=_WIDTH,
    gguf_default=_WIDTH,
    written=True,
)


def _check(fields: Fields) -> Fields:
    return {
        **check_latent(fields),
        "residual_scale": _SCALES["scale_depth"] / fields["layers"] ** 0.5,
        "logit_divisor": fields["hidden"] / _SCALES["dim_model_base"],
    }


FAMILY = Family(
    name="minicpm3",
    model_types={
        "minicpm3": ModelType(
            class_name="MiniCPM3ForCausalLM",
            defaults={
                "vocabulary": 73448,
                "context": 32768,
                "hidden": 2560,
                "intermediate": 6400,
                "layers": 62,
                "heads": 40,
                "kv_heads": 40,
                "norm_epsilon": 1e-5,
                "tied": True,
                "query_rank": 768,
                "latent_rank": 256,
                "rope_dimensions": 32,
                "plain_dimensions": 64,
                "scaling.original_context": same("context"),
            },
        )
    },
    blocks={"rope_factors_by_length": True, "embedding_scale": float(_SCALES["scale_emb"])},
    names=adapt(
        LATENT_DECODER,
        {
            "attention.k_b": {"gguf": None, "change": None},
            "attention.v_b": {"gguf": None, "change": None},
            **LONGROPE_LINES,
        },
    ),
    keys=latent_keys(
        DECODER_KEYS,
        activation("silu"),
        *(key for key in LONGROPE_KEYS if key.field not in {"rope_dimensions", "rotated_share"}),
        LONG_ROPE_FACTORS,
        _VALUES,
        NO_BIASES,
        NO_MLP_BIASES,
        *(
            Key(field=name, kind=Exactly(value, f"llama.cpp always uses {value}"), default=value,
                hugging_face=name)
            for name, value in _SCALES.items()
        ),
        sizes=(_KV_HEADS, *_SIZES),
    ),
    fusions=(joined_form(), joined_form("gguf")),
    older={"original_max_position_embeddings": IN_SCALING},
    standard=standard,
    checked=_check,
)  # fmt: skip
