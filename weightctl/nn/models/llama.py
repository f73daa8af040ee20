"""The Module of llama and what is built alike: Mistral, SmolLM."""

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
from weightctl.nn.rope import FrequencyFactors, RotaryEmbedding

if TYPE_CHECKING:
    from weightctl.families.llama import LlamaConfig
    from weightctl.graph.value import Value
    from weightctl.nn.experts import MixtureOfExperts
    from weightctl.nn.models.network import Beside

__all__ = ["Llama", "LlamaLayer"]


class LlamaLayer(Module):
    """Attention, then a gated MLP, each after a norm and added to what came in."""

    def __init__(self, config: LlamaConfig, dtype: DType, window: int | None = None) -> None:
        self.attention_norm = RMSNorm(config.hidden, config.norm_epsilon, dtype=dtype)
        self.attention = Attention(
            config.hidden,
            config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            bias=config.attention_bias,
            output_bias=config.attention_output_bias,
            window=window,
            norm_epsilon=config.norm_epsilon if config.qk_norm else None,
            interleaved=config.rope_interleaved,
            dtype=dtype,
        )
        self.mlp_norm = RMSNorm(config.hidden, config.norm_epsilon, dtype=dtype)
        self.mlp: GatedMLP | MixtureOfExperts = GatedMLP(
            config.hidden,
            config.intermediate,
            config.activation,
            bias=config.mlp_bias,
            dtype=dtype,
        )

    def __call__(self, x: Value, cos: Value, sin: Value) -> Value:
        """Return what goes to the next layer, in the shape of `x`."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Llama(Network):
    """A llama: from token ids, int64[batch, seq], to logits [batch, seq, vocabulary]."""

    def __init__(self, config: LlamaConfig, dtype: DType = DType.float32) -> None:
        self.config = config
        self.dtype = dtype
        self.embedding = Embedding(config.vocabulary, config.hidden, dtype=dtype)
        self.rope = RotaryEmbedding(config.rope_dimensions, config.rope_base, config.rope_scaling)
        if config.has_rope_factors:
            self.rope_factors = FrequencyFactors(config.rope_dimensions // 2)
        self.layers = LayerList(
            [LlamaLayer(config, dtype, config.window(number)) for number in range(config.layers)]
        )
        self.norm = RMSNorm(config.hidden, config.norm_epsilon, dtype=dtype)
        self.output = Linear(config.hidden, config.vocabulary, dtype=dtype)
        if config.tied:
            self.output.set_shared_weight("weight", self.embedding.weight)

    def begin(self, tokens: Value) -> tuple[Value, Beside]:
        """Return the tokens' vectors, and by how much each position is rotated."""
        x = self.embedding(tokens, self.dtype)
        positions = ops.range(tokens.shape[1], device=tokens.device)
        factors = self.rope_factors() if self.config.has_rope_factors else None
        return x, self.rope(positions, factors)

    def end(self, x: Value) -> Value:
        """Return the logits of what follows each token."""
        return self.output(self.norm(x))
