"""Granite, mixtures of experts beside a shared MLP for all positions.

Names and keys: transformers' `modeling_granitemoeshared.py`; llama.cpp's `conversion/granite.py`,
which treats it as a granitemoe that states the width of the shared MLP.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.families import FAMILIES
from weightctl.families.decoder_keys import with_keys
from weightctl.families.experts import SHARED_WIDTH
from weightctl.families.family import ModelType
from weightctl.families.fusions import Fusion
from weightctl.families.kinds import SIZE, WholeNumber
from weightctl.families.lines import adapt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.metadata import MetadataValue

GRANITEMOE = FAMILIES["granitemoe"].load()

_LAYER, _SHARED = "model.layers.{}.", "shared_mlp."


def _has_shared(metadata: Mapping[str, MetadataValue]) -> bool:
    return "granitemoe.expert_shared_feed_forward_length" in metadata


FAMILY = replace(
    GRANITEMOE,
    name="granitemoeshared",
    gguf="granitemoe",
    is_of=_has_shared,
    model_types={
        "granitemoeshared": ModelType(
            class_name="GraniteMoeSharedForCausalLM", fixed={"mlp_bias": False}
        )
    },
    names=adapt(
        GRANITEMOE.names,
        {
            "mlp.shared.gate": {"hugging_face": None},
            "mlp.shared.up": {"hugging_face": None},
            "mlp.shared.down": _SHARED + "output_linear",
        },
    ),
    keys=with_keys(
        GRANITEMOE.keys,
        replace(
            SHARED_WIDTH, kind=WholeNumber(0, SIZE.most), default=0, gguf_default=0, written=True
        ),
    ),
    fusions=(
        *GRANITEMOE.fusions,
        Fusion(
            convention="hugging_face",
            name=f"{_LAYER}{_SHARED}input_linear.{{kind}}",
            parts=tuple(f"layers.{{}}.mlp.shared.{part}" for part in ("gate", "up")),
        ),
    ),
)
