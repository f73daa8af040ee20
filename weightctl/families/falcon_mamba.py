"""FalconMamba: a Mamba in which the steps' vector, B and C have norms without weights.

Names and keys: transformers' `modeling_falcon_mamba.py` and `configuration_falcon_mamba.py`;
llama.cpp's `models/mamba.cpp` and `conversion/mamba.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.families.decoder_keys import with_keys
from weightctl.families.keys import Key
from weightctl.families.kinds import EPSILON, Exactly
from weightctl.families.mamba import FAMILY as MAMBA
from weightctl.families.mamba import NORMS_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.metadata import MetadataValue

_NORMS = "mamba.ssm.dt_b_c_rms"


def _has_norms(metadata: Mapping[str, MetadataValue]) -> bool:
    return _NORMS in metadata and metadata[_NORMS].content is True


FAMILY = replace(
    MAMBA,
    name="falcon_mamba",
    gguf="mamba",
    is_of=_has_norms,
    model_types={
        "falcon_mamba": replace(
            MAMBA.model_types["mamba"],
            class_name="FalconMambaForCausalLM",
        )
    },
    blocks={**MAMBA.blocks, "ssm_inner_norms": "unweighted"},
    keys=with_keys(
        MAMBA.keys,
        replace(NORMS_KEY, kind=Exactly(True, "the norms are missing"), default=True),
        # GGUF has no key; llama.cpp computes these norms with the epsilon of the others.
        Key(field="ssm_inner_epsilon", kind=EPSILON, default=1e-6, gguf_default=1e-6,
            hugging_face="mixer_rms_eps"),
    ),
    differs="llama.cpp uses the epsilon of the other norms for those of steps, B and C",
)  # fmt: skip
