"""Mamba-2: layers of a state space model alone, in which heads share their matrices in groups.

Names and keys: transformers' `modeling_mamba2.py` and `configuration_mamba2.py`; llama.cpp's
`models/mamba2.cpp` and `conversion/mamba.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import DECODER_KEYS, rename_keys, with_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import SIZE, Exactly
from weightctl.families.lines import layer_lines, line
from weightctl.families.state_space import (
    NO_HEADS,
    ONLY_STATES,
    check_heads_of_states,
    mamba2_keys,
    ssm_roles,
    without_auto,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.family import Name
    from weightctl.families.keys import Fields

_LAYER = "backbone.layers.{}."
# The keys that a model without attention and MLPs shares with other decoders.
_KEPT = ("vocabulary", "context", "hidden", "layers", "norm_epsilon", "activation", "tied")


def list_lines(version: int) -> tuple[Name, ...]:
    """Return the lines of a model whose layers are a Mamba (`version` 1) or a Mamba-2."""
    roles: Mapping[str, str | Mapping[str, Any]] = {
        "attention_norm": "norm",
        **ssm_roles(version, "mixer."),
    }
    return (
        line("embedding", hugging_face="backbone.embeddings"),
        *layer_lines(_LAYER, roles),
        line("norm", hugging_face="backbone.norm_f"),
        line("output"),
    )


def only_states_keys(*keys: Key) -> tuple[Key, ...]:
    """Return the keys of a model whose layers are state space models, which have these `keys`."""
    kept = tuple(key for key in DECODER_KEYS if key.field in _KEPT)
    changed = with_keys(
        rename_keys(kept, {"norm_epsilon": "layer_norm_epsilon"}),
        # The models have no limit; llama.cpp's converter states this number.
        Key(field="context", kind=SIZE, default=1 << 20, gguf="{arch}.context_length"),
        Key(field="activation", kind=Exactly("silu", "llama.cpp uses SiLU"), default="silu",
            gguf_default="silu", hugging_face="hidden_act"),
    )  # fmt: skip
    return (*changed, *NO_HEADS, *keys)


def _check(fields: Fields) -> Fields:
    check_heads_of_states(fields)
    return fields


FAMILY = Family(
    name="mamba2",
    model_types={
        "mamba2": ModelType(
            class_name="Mamba2ForCausalLM",
            defaults={
                "vocabulary": 32768,
                "hidden": 4096,
                "layers": 64,
                "norm_epsilon": 1e-5,
                "ssm_size": 64,
                "ssm_groups": 8,
            },
        )
    },
    blocks={**ONLY_STATES, "ssm_version": 2},
    prefix="backbone.",
    names=list_lines(2),
    keys=only_states_keys(*mamba2_keys()),
    standard=without_auto,
    checked=_check,
)
