"""The Module of BERT and the sentence encoders built like it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.nn.attention import Attention
from weightctl.nn.base_layer import LayerList
from weightctl.nn.embedding import Embedding
from weightctl.nn.mlp import MLP
from weightctl.nn.models.network import Network
from weightctl.nn.module import Module
from weightctl.nn.norm import LayerNorm

if TYPE_CHECKING:
    from weightctl.families.bert import BertConfig
    from weightctl.graph.value import Value
    from weightctl.nn.models.network import Beside

__all__ = ["Bert", "BertLayer"]


class BertLayer(Module):
    """Attention, then an MLP, each added to what came in and then normed."""

    def __init__(self, config: BertConfig, dtype: DType) -> None:
        self.attention = Attention(
            config.hidden, config.heads, bias=True, causal=False, dtype=dtype
        )
        self.attention_norm = LayerNorm(config.hidden, config.norm_epsilon, dtype=dtype)
        self.mlp = MLP(config.hidden, config.intermediate, config.activation, dtype=dtype)
        self.mlp_norm = LayerNorm(config.hidden, config.norm_epsilon, dtype=dtype)

    def __call__(self, x: Value, mask: Value) -> Value:
        """Return what goes to the next layer, in the shape of `x`."""
        x = self.attention_norm(x + self.attention(x, mask=mask))
        return self.mlp_norm(x + self.mlp(x))


class Bert(Network):
    """A BERT: from token ids and a mask to the last layer's states [batch, seq, hidden].

    The mask is 1 where there is a token and 0 where there is padding.
    """

    INPUTS = ("tokens", "mask")

    def __init__(self, config: BertConfig, dtype: DType = DType.float32) -> None:
        self.config = config
        self.dtype = dtype
        self.embedding = Embedding(config.vocabulary, config.hidden, dtype=dtype)
        self.position_embedding = Embedding(
            config.context, config.hidden, dtype=dtype, replicated=True
        )
        self.token_type_embedding = Embedding(
            config.token_types, config.hidden, dtype=dtype, replicated=True
        )
        self.embedding_norm = LayerNorm(config.hidden, config.norm_epsilon, dtype=dtype)
        self.layers = LayerList([BertLayer(config, dtype) for _ in range(config.layers)])

    def begin(
        self, tokens: Value, mask: Value, token_types: Value | None = None
    ) -> tuple[Value, Beside]:
        """Return the normed vectors, and which positions hold tokens.

        All tokens are of type 0 unless `token_types` tells.
        """
        if token_types is None:
            token_types = ops.constant([[0]], DType.int64, tokens.device)
        positions = ops.range(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens, self.dtype)
        x = x + self.token_type_embedding(token_types, self.dtype)
        x = x + self.position_embedding(positions, self.dtype)
        x = self.embedding_norm(x)
        batch, seq = tokens.shape
        return x, ((mask != 0).reshape((batch, 1, 1, seq)),)

    def end(self, x: Value) -> Value:
        """Return the last layer's states, as they are."""
        return x
