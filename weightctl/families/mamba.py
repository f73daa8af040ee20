"""Mamba: layers of a state space model alone, in which each channel has its own rates.

Names and keys: transformers' `modeling_mamba.py` and `configuration_mamba.py`; llama.cpp's
`models/mamba.cpp` and `conversion/mamba.py`.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import Exactly
from weightctl.families.mamba2 import list_lines, only_states_keys
from weightctl.families.state_space import (
    ONLY_STATES,
    find_expansion,
    mamba_keys,
    without_auto,
)

_NORMS = "the norms of steps, B and C are those of FalconMamba"

NORMS_KEY = Key(
    field="has_norms", kind=Exactly(False, _NORMS), default=False, gguf_default=False,
    gguf="{arch}.ssm.dt_b_c_rms", written=True,
)  # fmt: skip

# config.json states the number of channels, too.
_KEYS = tuple(
    replace(key, hugging_face="intermediate_size")
    if key.field == "ssm_inner" and not key.gguf
    else key
    for key in mamba_keys()
)

FAMILY = Family(
    name="mamba",
    model_types={
        "mamba": ModelType(
            class_name="MambaForCausalLM",
            defaults={
                "vocabulary": 50280,
                "hidden": 768,
                "norm_epsilon": 1e-5,
                "ssm_state": 16,
                "tied": True,
            },
        )
    },
    blocks={**ONLY_STATES, "ssm_version": 1},
    prefix="backbone.",
    names=list_lines(1),
    keys=only_states_keys(*_KEYS, NORMS_KEY),
    standard=without_auto,
    unloaded=find_expansion,
)  # fmt: skip
