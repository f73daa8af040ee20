"""The tensors of vLLM's models and their names, by family.

Facts of vLLM 0.33.0 (commit 4ba787ec9): `models/*.py`, `layers/linear.py`,
`layers/vocab_parallel_embedding.py`, `layers/attention/attention.py` and `layers/fused_moe/` below
`model_executor/`. Other releases may use other names: before about 0.12, attention had no scales,
and names of experts did not have `routed_experts`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.family import TensorNames

__all__ = [
    "PADDED_TO",
    "POSITION_IDS",
    "RELEASE",
    "SCALES",
    "VLLM_FAMILIES",
    "VllmFamily",
    "in_vllm",
]

RELEASE = "0.33.0"
# `DEFAULT_VOCAB_PADDING_SIZE`: embeddings are padded with zero rows to a multiple of this.
PADDED_TO = 64
# Buffers of each attention layer, float32 scalars. vLLM itself sets them to 1 when it loads a model
# without quantization, whatever their loaded values are.
SCALES = ("_k_scale", "_v_scale", "_q_scale", "_prob_scale")
# A buffer of BERT with the integers from 0, which its forward pass does not use.
POSITION_IDS = "embeddings.position_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmFamily:
    """vLLM's model class of a family.

    `classes` are the `architectures` in config.json that it accepts. `renamed` has patterns in
    Hugging Face's names and their replacements; tensors that then have the same name are joined, in
    the order of the family's lines. `head` is the name of a tied model's embedding, None if it
    keeps its own. `padded` are further tensors that are cut and padded like the vocabulary.
    `plain_output` means that attention's output has no bias, whatever the config states.
    `shares_experts` means that there cannot be more ranks than experts.
    """

    classes: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...] = ()
    head: str | None = "lm_head.weight"
    padded: tuple[str, ...] = ()
    plain_output: bool = False
    shares_experts: bool = False
    has_position_ids: bool = False


_QKV = (r"\.[qkv]_proj\.", ".qkv_proj.")
_GATED = (_QKV, (r"\.(gate|up)_proj\.", ".gate_up_proj."))


def _experts(gate_or_up: str, down: str) -> tuple[tuple[str, str], ...]:
    return (
        (rf"\.experts\.\d+\.({gate_or_up})\.weight", ".experts.routed_experts.w13_weight"),
        (rf"\.experts\.\d+\.{down}\.weight", ".experts.routed_experts.w2_weight"),
    )


VLLM_FAMILIES: Mapping[str, VllmFamily] = {
    "llama": VllmFamily(classes=("LlamaForCausalLM", "MistralForCausalLM"), renamed=_GATED),
    "mixtral": VllmFamily(
        classes=("MixtralForCausalLM",), renamed=(_QKV, *_experts("w1|w3", "w2"))
    ),
    "qwen2": VllmFamily(classes=("Qwen2ForCausalLM",), renamed=_GATED),
    "qwen3": VllmFamily(classes=("Qwen3ForCausalLM",), renamed=_GATED, plain_output=True),
    "qwen3moe": VllmFamily(
        classes=("Qwen3MoeForCausalLM",),
        # The module that runs the experts also has the router; of its two names the first in order
        # is kept.
        renamed=(
            _QKV,
            *_experts("gate_proj|up_proj", "down_proj"),
            (r"\.mlp\.gate\.", ".mlp.experts.gate."),
        ),
        plain_output=True,
        shares_experts=True,
    ),
    # It has no head: a tied model uses the embedding.
    "gemma2": VllmFamily(classes=("Gemma2ForCausalLM",), renamed=_GATED, head=None),
    "gemma3": VllmFamily(classes=("Gemma3ForCausalLM",), renamed=_GATED),
    "phi3": VllmFamily(classes=("Phi3ForCausalLM",)),
    "bert": VllmFamily(
        classes=("BertModel",),
        renamed=((r"\.self\.(query|key|value)\.", ".self.qkv_proj."), (r"\A", "model.")),
        head=None,
        padded=("position_embedding", "token_type_embedding"),
        has_position_ids=True,
    ),
}  # fmt: skip


def in_vllm(family: VllmFamily, names: TensorNames) -> str:
    """Return vLLM's name for a tensor, or for the tensor that it is joined into."""
    name = names.hugging_face or names.module
    for pattern, instead in family.renamed:
        name = re.sub(pattern, instead, name, count=1)
    return name
