"""The Module of Qwen3's mixtures of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.nn.experts import MixtureOfExperts
from weightctl.nn.models.llama import Llama

if TYPE_CHECKING:
    from weightctl.families.qwen3moe import Qwen3MoeConfig

__all__ = ["Qwen3Moe"]


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
