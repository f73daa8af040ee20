"""The Module of gemma3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.nn.models.gemma2 import GemmaNetwork
from weightctl.nn.rope import RotaryEmbedding

if TYPE_CHECKING:
    from weightctl.families.gemma3 import Gemma3Config
    from weightctl.graph.value import Value
    from weightctl.nn.models.network import Beside

__all__ = ["Gemma3"]


class Gemma3(GemmaNetwork):
    """A gemma3: from token ids, int64[batch, seq], to logits [batch, seq, vocabulary]."""

    def __init__(self, config: Gemma3Config, dtype: DType = DType.float32) -> None:
        super().__init__(config, dtype, has_head_norms=True)
        self.local_rope = RotaryEmbedding(config.rope_dimensions, config.local_rope_base)

    def begin(self, tokens: Value) -> tuple[Value, Beside]:
        """Return the tokens' scaled vectors, and the rotations of either kind of layers."""
        x, everywhere = super().begin(tokens)
        nearby = self.local_rope(ops.range(tokens.shape[1], device=tokens.device))
        return x, (*everywhere, *nearby)

    def through(self, layer: Any, x: Value, beside: Beside) -> Value:
        """Return what a layer makes of what goes into it; those with a window rotate otherwise."""
        everywhere, nearby = beside[:2], beside[2:]
        return super().through(layer, x, nearby if layer.is_local else everywhere)
