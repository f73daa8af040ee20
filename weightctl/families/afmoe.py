"""Trinity (AFMoE): attention with a gate at its output, and experts with sigmoid scores.

Names and keys: transformers' `modeling_afmoe.py`; llama.cpp's `models/afmoe.cpp` and
`conversion/afmoe.py`. llama.cpp always multiplies the embedding by the square root of the hidden
size, and uses RoPE in all layers except every fourth.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    check_decoder,
    rename_keys,
    with_keys,
)
from weightctl.families.experts import (
    EXPERT_WIDTH,
    ROUTED_KEYS,
    SHARED_LINES,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.keys import Key, same
from weightctl.families.kinds import FLAG, SIZE, Exactly
from weightctl.families.layers import ONES, every_but, window_flags
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard

if TYPE_CHECKING:
    from weightctl.families.keys import Fields

_PERIOD = 4
_NORMALIZED = "transformers divides the shares of experts by their sum in any case"
_CALLED = {
    "experts_scale": "route_scale",
    "shared_count": "num_shared_experts",
    "dense_first": "num_dense_layers",
}
_WORDS, _FLAGS = window_flags(_PERIOD)


def _by_period(fields: Fields) -> tuple[bool, ...]:
    return every_but(fields["window_period"])(fields)


def _find_other_layers(fields: Fields) -> str | None:
    """Return why llama.cpp would run a different model, None if it would not."""
    if fields["rotated_layers"] != every_but(_PERIOD)(fields):
        return "its layers with full attention are not exactly every fourth layer"
    return None


FAMILY = Family(
    name="afmoe",
    model_types={
        "afmoe": ModelType(
            class_name="AfmoeForCausalLM",
            defaults={
                "vocabulary": 200192,
                "context": 16384,
                "hidden": 2048,
                "intermediate": 6144,
                "heads": 16,
                "head_dim": 128,
                "norm_epsilon": 1e-5,
                "expert_intermediate": 1408,
                "shared_count": 2,
                "dense_first": 1,
            },
        )
    },
    blocks={
        "qk_norm": "head",
        "attention_gate": True,
        "post_norms": True,
        "router": "sigmoid",
        "router_correction": True,
    },
    keeps_window=True,
    unloaded=_find_other_layers,
    names=expert_lines(
        adapt(
            DECODER,
            {
                "attention.q_norm": {},
                "attention.k_norm": {},
                "attention.gate": {},
                "post_attention_norm": {},
                "mlp_norm": "pre_mlp_layernorm",
                "post_mlp_norm": "post_mlp_layernorm",
            },
        ),
        dense=True,
        more={
            "mlp.router": "router.gate",
            "mlp.correction": "expert_bias",
            **SHARED_LINES,
        },
    ),
    keys=expert_keys(
        with_keys(
            DECODER_KEYS,
            *BIASES[:2],
            Key(field="embedding_by_root", kind=FLAG, default=False, gguf_default=True,
                hugging_face="mup_enabled"),
            Key(field="sliding_window", kind=SIZE, default=1024,
                gguf="{arch}.attention.sliding_window", hugging_face="sliding_window"),
            Key(field="window_period", kind=SIZE, default=_PERIOD, gguf_default=_PERIOD,
                hugging_face="global_attn_every_n_layers"),
            replace(_WORDS, default=_by_period),
            _FLAGS,
            Key(field="rotated_layers", kind=ONES, default=same("windowed_layers"),
                gguf_default=every_but(_PERIOD)),
        ),
        "num_experts",
        *with_keys(
            rename_keys(ROUTED_KEYS, _CALLED),
            replace(EXPERT_WIDTH, gguf_default=same("intermediate")),
            Key(field="experts_normalized", kind=FLAG, gguf_default=False,
                gguf="{arch}.expert_weights_norm"),
            Key(field="experts_normalized", kind=Exactly(True, _NORMALIZED), default=True,
                hugging_face="route_norm"),
            without=("expert_groups", "expert_groups_used"),
        ),
        experts=64,
        used=6,
    ),
    fusions=(qkv_form(), *expert_forms("router.gate")),
    standard=standard,
    checked=checking_experts(check_decoder),
)  # fmt: skip
