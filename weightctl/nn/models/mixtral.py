"""The Module of Mixtral."""

from __future__ import annotations

from dataclasses import dataclass

from weightctl.dtype import DType
from weightctl.nn.experts import MixtureOfExperts
from weightctl.nn.models.llama import Llama, LlamaConfig

__all__ = ["Mixtral", "MixtralConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtralConfig(LlamaConfig):
    """The sizes of a Mixtral; `intermediate` is that of one expert.

    Each position goes through `experts_used` of the `experts` of a layer.
    """

    experts: int
    experts_used: int


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
