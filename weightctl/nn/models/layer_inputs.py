"""Embeddings of tokens for each layer, and the part of a layer that reads them."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

from weightctl.graph import ops
from weightctl.graph.graph import Weight
from weightctl.nn.embedding import Embedding
from weightctl.nn.layer_sharding import replicate_weights
from weightctl.nn.linear import Linear
from weightctl.nn.mlp import ACTIVATIONS
from weightctl.nn.module import Divisible, Module
from weightctl.nn.norm import RMSNorm
from weightctl.nn.precision import weight_as

if TYPE_CHECKING:
    from weightctl.dtype import DType
    from weightctl.graph.graph import Value
    from weightctl.graph.sharding import ShardingStrategy


class LayerInputs(Module):
    """The embeddings of tokens for all `layers`, each of `size` numbers.

    They are the sum of the rows of a table with `count` tokens, and of a projection of the usual
    embedding that is normed for each layer. Tokens that the table does not have use the row of
    token 0.

    Source: transformers' `Gemma3nTextModel.project_per_layer_inputs`.
    """

    def __init__(
        self, count: int, features: int, *, layers: int, size: int, eps: float, dtype: DType
    ) -> None:
        self.count, self.layers, self.size = count, layers, size
        self.features = features
        self.embedding = Embedding(count, layers * size, dtype=dtype)
        self.projection = Linear(features, layers * size, dtype=dtype)
        self.norm = RMSNorm(size, eps, dtype=dtype)

    def __call__(self, tokens: Value, x: Value, *, is_whole: bool) -> Value:
        """Return the embeddings, `(batch, positions, layers * size)`.

        `x` are the usual ones, `(batch, positions, features)`. `is_whole` states that the table has
        all tokens.
        """
        known = tokens if is_whole else ops.where(tokens < self.count, tokens, 0)
        stored = self.embedding(known, x.dtype) * sqrt(self.size)
        computed = self.projection(x) / sqrt(self.features)
        computed = self.norm(computed.reshape((*x.shape[:-1], self.layers, self.size)))
        computed = computed.reshape(stored.shape)
        return (computed + stored) * sqrt(0.5)


class LayerInput(Divisible):
    """The part of a layer that reads its own embedding of a token: gate, product, projection, norm.

    Every rank computes all of it, because its weights are small.
    """

    def __init__(
        self, features: int, size: int, activation: str, *, eps: float, dtype: DType
    ) -> None:
        self.activation = ACTIVATIONS[activation]
        self.gate = Linear(features, size, dtype=dtype)
        self.projection = Linear(size, features, dtype=dtype)
        self.norm = RMSNorm(features, eps, dtype=dtype)

    def __call__(self, x: Value, given: Value) -> Value:
        """Return what is added to `x`, `(batch, positions, features)`; `given` is the embedding."""
        return self.norm(self.projection(self.activation(self.gate(x)) * given))

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies that give every shard all weights."""
        weights = (self.gate.weight, self.projection.weight, self.norm.weight)
        return replicate_weights(devices, *weights)


class LayerScale(Module):
    """A factor that a checkpoint stores as a tensor of one number, or of `size` numbers."""

    def __init__(self, dtype: DType, size: int = 1) -> None:
        self.weight = Weight("weight", dtype, (size,))

    def __call__(self, x: Value) -> Value:
        return x * weight_as(self.weight, x.dtype)
