"""Phi-3, Phi-3.5 and Phi-4: a llama with fused projections.

Names and keys: transformers' `modeling_phi3.py` and `configuration_phi3.py`; llama.cpp's
`convert_hf_to_gguf.py` and `llama-model.cpp`. Both naming conventions have the rows of the gate
before those of up, in the tensor that GGUF calls `ffn_up`. llama.cpp ignores the window and uses
full attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import DECODER_KEYS, check_decoder, with_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import SIZE, OrNone
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_factors import LONGROPE_LINES
from weightctl.families.rope_keys import LONG_ROPE_FACTORS, LONGROPE_KEYS, standard

if TYPE_CHECKING:
    from collections.abc import Mapping

_FUSED: Mapping[str, Mapping[str, Any] | None] = {
    **LONGROPE_LINES,
    "attention.q": None,
    "attention.k": None,
    "attention.v": None,
    "attention.qkv": {},
    "mlp.gate": None,
    "mlp.up": None,
    "mlp.gate_up": {},
}

FAMILY = Family(
    name="phi3",
    model_types={
        "phi3": ModelType(
            class_name="Phi3ForCausalLM",
            defaults={
                "vocabulary": 32064,
                "context": 4096,
                "hidden": 3072,
                "intermediate": 8192,
                "norm_epsilon": 1e-5,
            },
        )
    },
    blocks={"fused_qkv": True, "fused_gate_up": True, "rope_factors_by_length": True},
    heads_fill_hidden=True,
    names=adapt(DECODER, _FUSED),
    keys=with_keys(
        DECODER_KEYS,
        # Old versions of llama.cpp guess the window if the key is missing.
        Key(field="sliding_window", kind=OrNone(SIZE), default=None, gguf_default=None,
            gguf="{arch}.attention.sliding_window", hugging_face="sliding_window", written=True),
        *LONGROPE_KEYS,
        LONG_ROPE_FACTORS,
        without=("experts",),
    ),
    standard=standard,
    checked=check_decoder,
)  # fmt: skip
