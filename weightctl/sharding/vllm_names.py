"""The tensors of vLLM's models and their names, by family.

Facts of vLLM 0.33.0 (commit 4ba787ec9): `models/*.py`, `layers/linear.py`,
`layers/vocab_parallel_embedding.py`, `layers/attention/attention.py` and
`layers/fused_moe/` below `model_executor/`. Other releases may call something otherwise: before
0.12 or so attention had no scales, and experts stood without `routed_experts`.
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
# `DEFAULT_VOCAB_PADDING_SIZE`: embeddings have zeros behind their last row, up to a multiple.
PADDED_TO = 64
# Buffers that each attention has beside its projections, float32 numbers. vLLM sets them to 1
# itself when a model without quantization is loaded, whatever it has read.
SCALES = ("_k_scale", "_v_scale", "_q_scale", "_prob_scale")
# A buffer of BERT's with the numbers from 0 on, which its forward pass does not read.
POSITION_IDS = "embeddings.position_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmFamily:
    """vLLM's class of a family.

    `classes` are what config.json's `architectures` may have for it. `renamed` are patterns in
    Hugging Face's names and what is there instead; tensors that then have the same name are one, in
    the order of the family's lines. A tied model has its embedding as `head`, None if as itself.
    `padded` are parts that are cut and padded as the vocabulary is, besides that. `plain_output`
    says that attention's output has no bias whatever the config says. `shares_experts` says that
    there may not be more ranks than experts.
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
        # What runs the experts holds the router too; of two names the lesser is kept.
        renamed=(
            _QKV,
            *_experts("gate_proj|up_proj", "down_proj"),
            (r"\.mlp\.gate\.", ".mlp.experts.gate."),
        ),
        plain_output=True,
        shares_experts=True,
    ),
    # It has no head: what is tied is computed with the embedding.
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
    """Return what a tensor, or the one that it is a part of, is called; of Hugging Face's name."""
    name = names.hugging_face or names.module
    for pattern, instead in family.renamed:
        name = re.sub(pattern, instead, name, count=1)
    return name
