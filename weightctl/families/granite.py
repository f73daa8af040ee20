"""Granite, dense models: a llama with factors of embeddings, residuals, scores and logits.

Names and keys: transformers' `modeling_granite.py`; llama.cpp's `conversion/granite.py`.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.decoder_keys import GRANITE_SCALES, with_keys
from weightctl.families.family import ModelType
from weightctl.families.llama import FAMILY as LLAMA

FAMILY = replace(
    LLAMA,
    name="granite",
    model_types={"granite": ModelType(class_name="GraniteForCausalLM")},
    keys=with_keys(LLAMA.keys, *GRANITE_SCALES, without=("sliding_window",)),
    beside=(),
)
