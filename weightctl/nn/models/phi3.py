"""The Module of Phi-3, Phi-3.5 and Phi-4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.nn.attention import Attention
from weightctl.nn.base_layer import LayerList
from weightctl.nn.embedding import Embedding
from weightctl.nn.linear import Linear
from weightctl.nn.mlp import GatedMLP
from weightctl.nn.models.network import Network
from weightctl.nn.module import Module
from weightctl.nn.norm import RMSNorm
from weightctl.nn.rope import FrequencyFactors, RotaryEmbedding, by_length

if TYPE_CHECKING:
    from weightctl.families.phi3 import Phi3Config
    from weightctl.graph.value import Value
    from weightctl.nn.models.network import Beside

__all__ = ["Phi3", "Phi3Layer"]


class Phi3Layer(Module):
    """Attention, then a gated MLP, each after a norm and added to what came in."""

    def __init__(self, config: Phi3Config, dtype: DType) -> None:
        self.attention_norm = RMSNorm(config.hidden, config.norm_epsilon, dtype=dtype)
        self.attention = Attention(
            config.hidden,
            config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            window=config.sliding_window,
            fused=True,
            dtype=dtype,
        )
        self.mlp_norm = RMSNorm(config.hidden, config.norm_epsilon, dtype=dtype)
        self.mlp = GatedMLP(
            config.hidden, config.intermediate, config.activation, fused=True, dtype=dtype
        )

    def __call__(self, x: Value, cos: Value, sin: Value) -> Value:
        """Return what goes to the next layer, in the shape of `x`."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Phi3(Network):
    """A Phi-3: from token ids, int64[batch, seq], to logits [batch, seq, vocabulary]."""

    def __init__(self, config: Phi3Config, dtype: DType = DType.float32) -> None:
        self.config = config
        self.dtype = dtype
        self.embedding = Embedding(config.vocabulary, config.hidden, dtype=dtype)
        self.rope = RotaryEmbedding(config.rope_dimensions, config.rope_base, config.rope_scaling)
        if config.has_rope_factors:
            self.short_rope_factors = FrequencyFactors(config.rope_dimensions // 2)
            self.long_rope_factors = FrequencyFactors(config.rope_dimensions // 2)
        self.layers = LayerList([Phi3Layer(config, dtype) for _ in range(config.layers)])
        self.norm = RMSNorm(config.hidden, config.norm_epsilon, dtype=dtype)
        self.output = Linear(config.hidden, config.vocabulary, dtype=dtype)
        if config.tied:
            self.output.set_shared_weight("weight", self.embedding.weight)

    def begin(self, tokens: Value) -> tuple[Value, Beside]:
        """Return the tokens' vectors, and by how much each position is rotated."""
        x = self.embedding(tokens, self.dtype)
        positions = ops.range(tokens.shape[1], device=tokens.device)
        return x, self.rope(positions, self._rope_factors(positions))

    def end(self, x: Value) -> Value:
        """Return the logits of what follows each token."""
        return self.output(self.norm(x))

    def _rope_factors(self, positions: Value) -> Value | None:
        scaling = self.config.rope_scaling
        if scaling is None or not self.config.has_rope_factors:
            return None
        short, long = self.short_rope_factors(), self.long_rope_factors()
        return by_length(positions, scaling.original_context, short, long)
