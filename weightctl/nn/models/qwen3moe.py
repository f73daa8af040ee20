"""The Module of Qwen3's mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass

from weightctl.dtype import DType
from weightctl.nn.experts import MixtureOfExperts
from weightctl.nn.models.llama import Llama, LlamaConfig

__all__ = ["Qwen3Moe", "Qwen3MoeConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3MoeConfig(LlamaConfig):
    """The sizes of a Qwen3 with experts, each of which is `expert_intermediate` wide.

    `intermediate` is what layers without experts would have. Each position goes through
    `experts_used` of the `experts` of a layer, whose shares are those among themselves where
    `experts_normalized`, else among all.
    """

    experts: int
    experts_used: int
    expert_intermediate: int
    experts_normalized: bool


class Qwen3Moe(Llama):
    """A Qwen3 whose layers have a mixture of experts each in the place of the MLP."""

    def __init__(self, config: Qwen3MoeConfig, dtype: DType = DType.float32) -> None:
        super().__init__(config, dtype)
        for layer in self.layers:
            layer.mlp = MixtureOfExperts(
                config.hidden,
                config.expert_intermediate,
                config.activation,
                count=config.experts,
                used=config.experts_used,
                is_normalized=config.experts_normalized,
                dtype=dtype,
            )
