"""MiniCPM and MiniCPM4: a llama with factors that are computed from its sizes.

Names and keys: `configuration_minicpm.py` and `modeling_minicpm.py` in OpenBMB's checkpoints, since
transformers does not have the type; llama.cpp's `models/minicpm.cpp` and `conversion/minicpm.py`.
MiniCPM4 has LongRoPE. The sparse attention that some checkpoints offer is not supported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.families.configs import is_same_float32
from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    MULTIPLIERS,
    PLAIN_HEADS,
    check_decoder,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.keys import Key, same
from weightctl.families.kinds import SIZE, Exactly, Real
from weightctl.families.lines import DECODER, adapt
from weightctl.families.llama import ROPE_ROWS
from weightctl.families.rope_factors import LONGROPE_LINES
from weightctl.families.rope_keys import IN_SCALING, LONG_ROPE_FACTORS, LONGROPE_KEYS, standard

if TYPE_CHECKING:
    from weightctl.families.keys import Fields

_FACTOR = Real(0, 1e9)


def _share(fields: Fields) -> float:
    return float(fields["depth_scale"] / fields["layers"] ** 0.5)


def _find_depth_scale(fields: Fields) -> float:
    """Return the shortest `scale_depth` that gives the same residual scale in float32."""
    share, root = fields["residual_scale"], fields["layers"] ** 0.5
    rounded = (float(f"{share * root:.{digits}g}") for digits in range(1, 17))
    same = (each for each in rounded if is_same_float32(each / root, share))
    return next(same, float(share * root))


def _find_base(fields: Fields) -> int:
    hidden, divisor = float(fields["hidden"]), float(fields["logit_divisor"])
    return round(hidden / divisor)


# GGUF's keys, then those of config.json, each computed from those of the other.
_SCALES = (
    Key(field="embedding_scale", kind=_FACTOR, default=1.0, gguf_default=12.0,
        gguf="{arch}.embedding_scale", hugging_face="scale_emb"),
    # Files without these keys are from the first models.
    Key(field="residual_scale", kind=_FACTOR, gguf="{arch}.residual_scale",
        gguf_default=lambda fields: 1.4 / fields["layers"] ** 0.5),
    Key(field="depth_scale", kind=_FACTOR, default=1.0, gguf_default=_find_depth_scale,
        hugging_face="scale_depth", written=True),
    Key(field="residual_scale", kind=_FACTOR, default=_share),
    Key(field="logit_divisor", kind=_FACTOR, gguf=MULTIPLIERS["logit_divisor"].gguf,
        gguf_default=lambda fields: fields["hidden"] / 256),
    Key(field="base_size", kind=SIZE, default=1, gguf_default=_find_base,
        hugging_face="dim_model_base", written=True),
    Key(field="logit_divisor", kind=_FACTOR,
        default=lambda fields: fields["hidden"] / fields["base_size"]),
)  # fmt: skip

FAMILY = Family(
    name="minicpm",
    model_types={
        "minicpm": ModelType(
            class_name="MiniCPMForCausalLM",
            defaults={"tied": True, "scaling.original_context": same("context")},
        )
    },
    blocks={"rope_factors_by_length": True},
    names=adapt(DECODER, {**ROPE_ROWS, **LONGROPE_LINES}),
    keys=(
        *with_keys(DECODER_KEYS, *BIASES[:2], PLAIN_HEADS[1], *LONGROPE_KEYS, LONG_ROPE_FACTORS),
        *_SCALES,
        Key(field="further_experts", default=0, hugging_face="num_experts",
            kind=Exactly(0, "mixture of experts is not supported")),
    ),
    fusions=(qkv_form(),),
    older={"original_max_position_embeddings": IN_SCALING},
    standard=standard,
    checked=check_decoder,
)  # fmt: skip
