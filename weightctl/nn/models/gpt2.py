"""The Module of GPT-2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.nn.attention import Attention
from weightctl.nn.base_layer import LayerList
from weightctl.nn.embedding import Embedding
from weightctl.nn.linear import Linear
from weightctl.nn.mlp import MLP
from weightctl.nn.models.network import Network
from weightctl.nn.module import Module
from weightctl.nn.norm import LayerNorm

if TYPE_CHECKING:
    from weightctl.families.gpt2 import Gpt2Config
    from weightctl.graph.value import Value
    from weightctl.nn.models.network import Beside

__all__ = ["Gpt2", "Gpt2Layer"]


class Gpt2Layer(Module):
    """Attention, then an MLP, each after a norm and added to what came in."""

    def __init__(self, config: Gpt2Config, dtype: DType) -> None:
        self.attention_norm = LayerNorm(config.hidden, config.norm_epsilon, dtype=dtype)
        self.attention = Attention(
            config.hidden,
            config.heads,
            bias=True,
            fused=True,
            transposed=config.transposed,
            dtype=dtype,
        )
        self.mlp_norm = LayerNorm(config.hidden, config.norm_epsilon, dtype=dtype)
        self.mlp = MLP(
            config.hidden,
            config.intermediate,
            config.activation,
            transposed=config.transposed,
            dtype=dtype,
        )

    def __call__(self, x: Value) -> Value:
        """Return what goes to the next layer, in the shape of `x`."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Gpt2(Network):
    """A GPT-2: from token ids, int64[batch, seq], to logits [batch, seq, vocabulary].

    It has learned positions, so an engine refuses more tokens than its context.
    """

    def __init__(self, config: Gpt2Config, dtype: DType = DType.float32) -> None:
        self.config = config
        self.dtype = dtype
        self.embedding = Embedding(config.vocabulary, config.hidden, dtype=dtype)
        self.position_embedding = Embedding(
            config.context, config.hidden, dtype=dtype, replicated=True
        )
        self.layers = LayerList([Gpt2Layer(config, dtype) for _ in range(config.layers)])
        self.norm = LayerNorm(config.hidden, config.norm_epsilon, dtype=dtype)
        self.output = Linear(config.hidden, config.vocabulary, dtype=dtype)
        if config.tied:
            self.output.set_shared_weight("weight", self.embedding.weight)

    def begin(self, tokens: Value) -> tuple[Value, Beside]:
        """Return the vectors of tokens and positions, and nothing beside them."""
        positions = ops.range(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens, self.dtype) + self.position_embedding(positions, self.dtype)
        return x, ()

    def end(self, x: Value) -> Value:
        """Return the logits of what follows each token."""
        return self.output(self.norm(x))
