"""Mistral 4: latent attention with a temperature, and experts beside a shared MLP.

Names and keys: transformers' `modeling_mistral4.py`; llama.cpp's `models/deepseek2.cpp`, which runs
it. llama.cpp's own converter does not write the attention temperature of this family, though
llama.cpp supports it: its logits beyond the original context then differ from those of
transformers. weightctl writes it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import DECODER_KEYS, activation, with_keys
from weightctl.families.deepseek_v2 import FAMILY as DEEPSEEK_V2
from weightctl.families.deepseek_v2 import NO_BIASES, SOFTMAX_GATING
from weightctl.families.deepseek_v3 import ONLY_NEIGHBORS
from weightctl.families.experts import (
    GROUP_KEYS,
    ROUTED_KEYS,
    SHARED_LINES,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
    stacked_gate_up,
)
from weightctl.families.family import ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import Exactly, Real
from weightctl.families.latent import (
    LATENT_DECODER,
    YARN_MULTIPLIER,
    check_latent,
    find_difference_of_scaling,
    joined_form,
    latent_keys,
)
from weightctl.families.mistral3 import (
    MULTIMODAL_PARTS,
    MULTIMODAL_PREFIXES,
    TEMPERATURE_KEYS,
    check_temperature,
    standard_text,
)
from weightctl.families.rotations import find_rotated_share

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

_NO_GROUPS = "groups of experts are not supported"
# transformers' defaults if config.json does not have RoPE keys.
_ROPE: Mapping[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_DEFAULTS = {
    "vocabulary": 131072,
    "context": 1048576,
    "intermediate": 12288,
    "layers": 36,
    "kv_heads": 32,
    "query_rank": 1024,
    "latent_rank": 256,
    "plain_dimensions": 64,
    "shared_count": 1,
    "expert_intermediate": 2048,
    "experts_normalized": True,
}


def _find_difference(fields: Fields) -> str | None:
    if fields["scaling.kind"] == "yarn" and fields["scaling.mscale_all_dim"] != 1:
        return "it always uses 1 for `mscale` and `mscale_all_dim`"
    return find_difference_of_scaling(fields)


def _check(fields: Fields) -> Fields:
    return check_latent(check_temperature(fields))


FAMILY = replace(
    DEEPSEEK_V2,
    name="mistral4",
    gguf="mistral4",
    is_of=None,
    model_types={
        "mistral4": ModelType(class_name="Mistral4ForCausalLM", defaults=_DEFAULTS),
        "mistral3": ModelType(class_name="Mistral3ForConditionalGeneration", defaults=_DEFAULTS),
    },
    other_prefixes=MULTIMODAL_PREFIXES,
    beside=MULTIMODAL_PARTS,
    differs=_find_difference,
    fusions=(joined_form(), *expert_forms(), stacked_gate_up()),
    names=expert_lines(LATENT_DECODER, dense=True, parts=(None, None, None), more=SHARED_LINES),
    keys=expert_keys(
        latent_keys(DECODER_KEYS, activation("silu"), NO_BIASES, YARN_MULTIPLIER),
        "n_routed_experts",
        ONLY_NEIGHBORS,
        *with_keys(
            ROUTED_KEYS,
            SOFTMAX_GATING,
            *(replace(key, kind=Exactly(1, _NO_GROUPS)) for key in GROUP_KEYS),
        ),
        Key(field="rotated_share", kind=Real(0, 1), default=find_rotated_share, written=True,
            hugging_face="rope_parameters.partial_rotary_factor"),
        TEMPERATURE_KEYS[0],
        replace(TEMPERATURE_KEYS[1], gguf="{arch}.attention.temperature_length"),
        experts=128,
        used=4,
    ),
    standard=partial(standard_text, rope=_ROPE),
    checked=checking_experts(_check),
)  # fmt: skip
