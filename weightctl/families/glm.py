"""GLM-4 of 2024: like GLM-4 of 2025, with two norms per layer instead of four.

Names and keys: transformers' `modeling_glm.py`; llama.cpp's `conversion/chatglm.py`.
"""

from __future__ import annotations

from dataclasses import replace

from weightctl.families.family import ModelType
from weightctl.families.glm4 import FAMILY as GLM4
from weightctl.families.lines import adapt

FAMILY = replace(
    GLM4,
    name="glm",
    gguf="chatglm",
    model_types={
        "glm": ModelType(class_name="GlmForCausalLM", defaults=GLM4.model_types["glm4"].defaults)
    },
    blocks={"fused_gate_up": True, "rope_interleaved": True},
    names=adapt(GLM4.names, {"post_attention_norm": None, "post_mlp_norm": None}),
)
