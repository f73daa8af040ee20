"""Phi-3.5-MoE: a mixture that selects two experts one after the other, by SparseMixer.

Names and keys: transformers' `modeling_phimoe.py` and `configuration_phimoe.py`; llama.cpp's
`models/phimoe.cpp`. llama.cpp uses RMS norms and one softmax for both experts, although the models
were trained with LayerNorms and SparseMixer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    SLIDING_WINDOW,
    check_decoder,
    with_keys,
)
from weightctl.families.experts import checking_experts, expert_forms, expert_keys, expert_lines
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.keys import Key, Present, same
from weightctl.families.kinds import FLAG, SIZE, Exactly
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_factors import LONGROPE_LINES
from weightctl.families.rope_keys import (
    IN_SCALING,
    LONG_AMPLITUDE,
    LONG_ROPE_FACTORS,
    LONGROPE_KEYS,
    standard,
)

if TYPE_CHECKING:
    from weightctl.families.keys import Fields

_JITTER = "another threshold of SparseMixer is not supported, because llama.cpp has no key for it"


def _check(fields: Fields) -> Fields:
    """Return the fields; raises `ValueError` if the amplitudes of LongRoPE differ.

    transformers requires one for short contexts and one for long ones.
    """
    long, kind = fields["scaling.long_amplitude"], fields["scaling.kind"]
    if kind == "longrope" and fields.get("scaling.attention_factor", long) != long:
        raise ValueError("`short_mscale` and `long_mscale` of its RoPE scaling differ")
    return check_decoder(fields)


FAMILY = Family(
    name="phimoe",
    model_types={
        "phimoe": ModelType(
            class_name="PhimoeForCausalLM",
            defaults={
                "vocabulary": 32064,
                "context": 131072,
                "intermediate": 6400,
                "kv_heads": 8,
                "norm_epsilon": 1e-5,
                "rope_base": 1e6,
            },
        )
    },
    blocks={"norm": "layer", "router": "sparsemixer", "rope_factors_by_length": True},
    heads_fill_hidden=True,
    differs="it has RMS norms, and one softmax for the shares of both experts",
    names=expert_lines(
        adapt(
            DECODER,
            {
                **LONGROPE_LINES,
                "attention_norm": {"bias": True},
                "mlp_norm": {"bias": True},
                "norm": {"bias": True},
                "output": {"bias": "output_bias"},
            },
        ),
        "block_sparse_moe.",
        parts=("w1", "w3", "w2"),
    ),
    keys=expert_keys(
        with_keys(
            with_keys(DECODER_KEYS, *LONGROPE_KEYS),
            *BIASES[:2],
            SLIDING_WINDOW,
            Key(field="output_bias", kind=FLAG, default=False, hugging_face="lm_head_bias",
                seen=Present("output.bias")),
            *LONG_AMPLITUDE,
            LONG_ROPE_FACTORS,
        ),
        "num_local_experts",
        # `intermediate_size` is the width of an expert.
        Key(field="expert_intermediate", kind=SIZE, default=same("intermediate"),
            gguf_default=same("intermediate")),
        Key(field="router_threshold", kind=Exactly(0.01, _JITTER), default=0.01,
            hugging_face="router_jitter_noise"),
        Key(field="experts_used", gguf="{arch}.expert_used_count",
            kind=Exactly(2, "SparseMixer chooses two experts"), default=2,
            hugging_face="num_experts_per_tok"),
        experts=16,
        used=2,
    ),
    fusions=(qkv_form(), *expert_forms("router")),
    older={"original_max_position_embeddings": IN_SCALING},
    standard=standard,
    checked=checking_experts(_check),
)  # fmt: skip
