"""The Module of Mixtral."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.nn.experts import MixtureOfExperts
from weightctl.nn.models.llama import Llama

if TYPE_CHECKING:
    from weightctl.families.mixtral import MixtralConfig

__all__ = ["Mixtral"]


class Mixtral(Llama):
    """A llama whose layers have a mixture of experts each in the place of the MLP."""

    def __init__(self, config: MixtralConfig, dtype: DType = DType.float32) -> None:
        super().__init__(config, dtype)
        for layer in self.layers:
            layer.mlp = MixtureOfExperts(
                config.hidden,
                config.intermediate,
                config.activation,
                count=config.experts,
                used=config.experts_used,
                dtype=dtype,
            )
