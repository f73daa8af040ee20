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

    from weightctl.families.modules import TensorNames

RELEASE = "0.33.0"
# Embeddings are padded with zero rows to a multiple of this (`DEFAULT_VOCAB_PADDING_SIZE`).
PADDED_TO = 64
# Buffers of each attention layer, which are float32 scalars. When vLLM loads a model without
# quantization, it sets them to 1, and ignores their loaded values.
SCALES = ("_k_scale", "_v_scale", "_q_scale", "_prob_scale")
# A buffer of BERT with the integers from 0, which its forward pass does not use.
POSITION_IDS = "embeddings.position_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmFamily:
    """vLLM's model class of a family.

    `classes` are the `architectures` in config.json that it accepts. `renamed` has patterns of
    Hugging Face names and their replacements; tensors that have the same name after replacement
    are joined, in the order of the family's lines. `head` is the name of the embedding in a tied
    model, None if it keeps its own name. `padded` are further modules that are cut and padded like
    the vocabulary. `plain_output` is set if the attention's output projection never has a bias,
    even if the config states one. `shares_experts` is set if there must not be more ranks than
    experts. `has_position_ids` is set if the model has the buffer `POSITION_IDS`.
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
        # The router is also part of the module that runs the experts, so it has two names in vLLM.
        # vLLM keeps the first one in order.
        renamed=(
            _QKV,
            *_experts("gate_proj|up_proj", "down_proj"),
            (r"\.mlp\.gate\.", ".mlp.experts.gate."),
        ),
        plain_output=True,
        shares_experts=True,
    ),
    # vLLM's class does not have a head, since tied models use the embedding.
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
    """Return vLLM's name for a tensor, or for the tensor into which vLLM joins it."""
    name = names.hugging_face or names.module
    for pattern, instead in family.renamed:
        name = re.sub(pattern, instead, name, count=1)
    return name
