"""Granite 4, dense models without state space models: attention and an MLP in each layer.

Names and keys: transformers' `modeling_granitemoehybrid.py`; llama.cpp's `conversion/granite.py`,
which treats them as a granite that states whether it has RoPE.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families import FAMILIES
from weightctl.families.decoder_keys import with_keys
from weightctl.families.family import ModelType
from weightctl.families.fusions import Fusion
from weightctl.families.granitehybrid import ATTENTION, POSITION_KEYS, SILU, STATES, standard
from weightctl.families.keys import Key, same
from weightctl.families.kinds import SIZE, Exactly
from weightctl.families.layers import LayerChoice
from weightctl.families.lines import adapt
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields
    from weightctl.weights.metadata import MetadataValue

GRANITE = FAMILIES["granite"].load()

_SHARED = "shared_mlp."
_ATTENTION = (ATTENTION, "full_attention")
_DENSE = "models with experts and without state space models are not supported"


def _states_rope(metadata: Mapping[str, MetadataValue]) -> bool:
    return "granite.rope.scaling.finetuned" in metadata


def _is_dense(document: Mapping[str, Any]) -> bool:
    words = document.get("layer_types")
    has_states = not is_list(words) or any(word not in _ATTENTION for word in words)
    return document.get("num_local_experts", 8) == 0 and not has_states


def _mark_all(fields: Fields) -> tuple[bool, ...]:
    count: int = fields["layers"]
    return (True,) * count


FAMILY = replace(
    GRANITE,
    name="granite4",
    gguf="granite",
    is_of=_states_rope,
    is_of_config=_is_dense,
    model_types={
        "granitemoehybrid": ModelType(
            class_name="GraniteMoeHybridForCausalLM", fixed={"mlp_bias": False}
        )
    },
    names=adapt(
        GRANITE.names,
        {
            "rope_factors": None,
            "mlp.gate": {"hugging_face": None},
            "mlp.up": {"hugging_face": None},
            "mlp.down": _SHARED + "output_linear",
        },
    ),
    keys=(
        *with_keys(
            GRANITE.keys,
            SILU,
            Key(field="intermediate", kind=SIZE, default=1024, gguf="{arch}.feed_forward_length",
                hugging_face="shared_intermediate_size"),
            without=("has_rope_factors",),
        ),
        # transformers does not read this width, but other programs do.
        Key(field="stated_intermediate", kind=SIZE, default=same("intermediate"),
            gguf_default=same("intermediate"), hugging_face="intermediate_size", written=True),
        Key(field="expert_count", kind=Exactly(0, _DENSE), default=8, gguf_default=0,
            hugging_face="num_local_experts"),
        Key(field="expert_used_count", kind=Exactly(0, _DENSE), default=2, gguf_default=0,
            hugging_face="num_experts_per_tok"),
        Key(field="attention_layers", kind=LayerChoice(ATTENTION, STATES), default=_mark_all,
            gguf_default=_mark_all, hugging_face="layer_types", written=True),
        *POSITION_KEYS,
    ),
    fusions=(
        *GRANITE.fusions,
        Fusion(
            convention="hugging_face",
            name=f"model.layers.{{}}.{_SHARED}input_linear.{{kind}}",
            parts=tuple(f"layers.{{}}.mlp.{part}" for part in ("gate", "up")),
        ),
    ),
    standard=standard,
)  # fmt: skip
