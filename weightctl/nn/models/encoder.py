"""The Module of all encoders; the config selects the blocks."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.nn.layer_sharding import replicate_weights
from weightctl.nn.linear import Linear
from weightctl.nn.mlp import ACTIVATIONS
from weightctl.nn.models.block import make_norm
from weightctl.nn.models.blocks import BlockNetwork
from weightctl.nn.models.encoder_decoder import RelativeBias
from weightctl.nn.module import Divisible
from weightctl.nn.weight_names import all_weights

if TYPE_CHECKING:
    from weightctl.families.encoder import EncoderConfig
    from weightctl.graph.graph import Value, Weight
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.nn.models.network import Beside


class TextEncoder(BlockNetwork):
    """An encoder: from token ids and a mask to the last layer's states [batch, seq, hidden].

    The mask is 1 for tokens and 0 for padding. With a classifier head, the output is [batch, seq,
    labels], and the values at the first position are those of the text. If the head reads the mean
    of all positions, the values at all positions are the same.
    """

    INPUTS = ("tokens", "mask")

    def __init__(self, config: EncoderConfig, dtype: DType = DType.float32) -> None:
        super().__init__(config, dtype, token_types=config.token_types)
        self.has_relative_bias = config.buckets > 0
        if self.has_relative_bias:
            self.relative_bias = RelativeBias(config, is_causal=False, dtype=dtype)
        if config.pre_norms:
            self.norm = make_norm(config, dtype)
        self.has_head = config.labels > 0
        self.has_mean = self.has_head and config.head_pooling == "mean"
        if self.has_head:
            self.head = ClassifierHead(config, dtype)

    def begin(
        self, tokens: Value, mask: Value, token_types: Value | None = None
    ) -> tuple[Value, Beside]:
        """Return the tokens' vectors, the two masks of the layers, and the cosines and sines.

        The masks state which positions hold tokens, and which of them a window can reach; with
        buckets of distances, they are added to the scores. All tokens are of type 0 unless
        `token_types` is given.
        """
        positions = ops.range(tokens.shape[1], device=tokens.device)
        batch, seq = tokens.shape
        is_token = (mask != 0).reshape((batch, 1, 1, seq))
        is_near = is_token
        if self.config.sliding_window is not None:
            # Attention applies the window to earlier positions; the mask applies it to later ones.
            ahead = positions.reshape((1, seq)) - positions.reshape((seq, 1))
            is_near = is_token & (ahead <= self.config.sliding_window // 2)
        if self.has_relative_bias:
            bias = self.relative_bias(positions)
            is_token, is_near = (ops.where(mask, bias, -inf) for mask in (is_token, is_near))
        x = self.look_up(tokens, positions, token_types)
        return x, (is_token, is_near, *self.rotations(positions))

    def through(self, layer: Any, x: Value, beside: Beside) -> Value:
        """Return the output of a layer for its input; padding is not attended to."""
        is_token, is_near, *rotations = beside
        mask = is_token if layer.attention.window is None else is_near
        if layer.rotation is None:
            made: Value = layer(x, mask=mask)
        else:
            made = layer(x, *rotations[2 * layer.rotation :][:2], mask)
        is_last = layer is self.layers[len(self.layers) - 1]
        return self._average(made, is_token) if self.has_mean and is_last else made

    def end(self, x: Value) -> Value:
        """Return the states of the last layer, or the values of the head if there is one.

        The states are normed if the model has norms before attention and MLP.
        """
        x = self.norm(x) if self.config.pre_norms and not self.has_mean else x
        return self.head(x) if self.has_head else x

    def _average(self, x: Value, is_token: Value) -> Value:
        """Return the mean of the normed states of all tokens, at each position."""
        x = self.norm(x) if self.config.pre_norms else x
        batch, seq, hidden = x.shape
        counted = is_token.reshape((batch, seq, 1)).cast(x.dtype)
        total = ops.sum(x * counted, 1, keepdims=True) / ops.sum(counted, 1, keepdims=True)
        return total.broadcast_to((batch, seq, hidden))


class ClassifierHead(Divisible):
    """`output(norm(activation(dense(x))))`; the norm is optional. Every rank has all of it."""

    def __init__(self, config: EncoderConfig, dtype: DType) -> None:
        self.activation = ACTIVATIONS[config.head_activation]
        self.dense = Linear(config.hidden, config.hidden, bias=config.head_bias, dtype=dtype)
        self.has_norm = config.head_norm
        if self.has_norm:
            self.norm = make_norm(config, dtype)
        self.output = Linear(config.hidden, config.labels, bias=True, dtype=dtype)

    def __call__(self, x: Value) -> Value:
        """Return a number for each label, `(..., labels)`."""
        y = self.activation(self.dense(x))
        return self.output(self.norm(y) if self.has_norm else y)

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard is the whole head."""
        return replicate_weights(devices, *all_weights(self))
