"""OLMoE: a mixture of experts whose queries and keys are normed over all heads together.

Names and keys: transformers' `modeling_olmoe.py`; llama.cpp's `models/olmoe.cpp`.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    KQV_CLAMP,
    check_decoder,
    with_keys,
)
from weightctl.families.experts import (
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
    find_shared_heads,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key, same
from weightctl.families.kinds import FLAG, SIZE
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard

# The projections that are normed over all heads together, and their norms.
_WHOLE: dict[str, dict[str, str]] = {
    "attention.q.whole": {},
    "attention.k.whole": {},
    "attention.q_norm.whole": {},
    "attention.k_norm.whole": {},
}


FAMILY = Family(
    name="olmoe",
    model_types={
        "olmoe": ModelType(
            class_name="OlmoeForCausalLM",
            defaults={
                "vocabulary": 50304,
                "context": 4096,
                "hidden": 2048,
                "layers": 16,
                "heads": 16,
                "intermediate": 2048,
                "norm_epsilon": 1e-5,
            },
        )
    },
    blocks={"qk_norm": "whole"},
    heads_fill_hidden=True,
    unloaded=find_shared_heads,
    names=expert_lines(adapt(DECODER, _WHOLE)),
    keys=expert_keys(
        # llama.cpp reads this key of GGUF, but not in this family.
        with_keys(DECODER_KEYS, *BIASES[:2], replace(KQV_CLAMP, gguf="")),
        "num_experts",
        # `intermediate_size` is the width of an expert.
        Key(field="expert_intermediate", kind=SIZE, default=same("intermediate"),
            gguf_default=same("intermediate")),
        Key(field="experts_normalized", kind=FLAG, default=False, gguf_default=False,
            hugging_face="norm_topk_prob"),
        experts=64,
        used=8,
    ),
    fusions=expert_forms(),
    standard=standard,
    checked=checking_experts(check_decoder),
)  # fmt: skip
