"""RWKV-7: layers of time mixing, and of an MLP that reads a mix of two positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.dtype import DType
from weightctl.families.modules import at_layer
from weightctl.graph import ops
from weightctl.nn.mlp import MLP
from weightctl.nn.models.block import make_norm
from weightctl.nn.models.decoder import Decoder
from weightctl.nn.module import Module
from weightctl.nn.recurrent.state_space import HeadNumbers
from weightctl.nn.recurrent.time_mix import LowRanks, TimeMix, mix, shift

if TYPE_CHECKING:
    from weightctl.families.rwkv7 import RwkvConfig
    from weightctl.graph.graph import Value
    from weightctl.nn.models.network import Beside


class RwkvBlock(Module):
    """A layer of RWKV-7; `number` is that of the layer."""

    def __init__(self, config: RwkvConfig, layer: int, dtype: DType) -> None:
        self.number = layer
        self.attention_norm = make_norm(config, dtype)
        # `parallel` replaces this module and the MLP by others, which are called in the same way.
        self.rwkv: Module = TimeMix(
            config.hidden,
            config.heads,
            at_layer(config, "head_dim", layer),
            ranks=LowRanks(
                config.decay_rank, config.rate_rank, config.value_rank, config.gate_rank
            ),
            norm_epsilon=config.head_epsilon,
            is_first=layer == 0,
            dtype=dtype,
        )
        self.mlp_norm = make_norm(config, dtype)
        self.mlp_mix = HeadNumbers(config.hidden)
        self.mlp: Module = MLP(
            config.hidden,
            at_layer(config, "intermediate", layer),
            config.activation,
            bias=False,
            dtype=dtype,
        )

    def __call__(self, x: Value, source: Value) -> tuple[Value, Value]:
        """Return the input of the next layer, and what the first layer reads.

        `source` is that in all layers but the first.
        """
        normal = self.attention_norm(x)
        if self.number == 0:
            source = normal
        mixed: Value = self.rwkv(normal, source)
        x = x + mixed
        normal = self.mlp_norm(x)
        inner: Value = self.mlp(mix(normal, shift(normal), self.mlp_mix))
        return x + inner, source


class RwkvDecoder(Decoder):
    """A decoder: from token ids, int64[batch, seq], to logits [batch, seq, vocabulary].

    Its layers read the values of the first layer, which they compute from what this layer reads.
    The layers pass that on beside their own inputs: [batch, seq, 2 * hidden].
    """

    config: RwkvConfig

    def __init__(self, config: RwkvConfig, dtype: DType = DType.float32) -> None:
        super().__init__(config, dtype)
        first, *others = (layer.rwkv for layer in self.layers)
        for each in others:
            each.share_first(first)

    def make_layer(self, layer: int) -> Module:
        return RwkvBlock(self.config, layer, self.dtype)

    def begin(self, tokens: Value) -> tuple[Value, Beside]:
        """Return the tokens' vectors, twice: the first layer replaces the second ones."""
        x, beside = super().begin(tokens)
        return self.enter(x), beside

    def enter(self, x: Value) -> Value:
        """Return the input of the first layer: the tokens' vectors, twice."""
        return ops.concat([x, x], axis=-1)

    def through(self, layer: Any, x: Value, beside: Beside) -> Value:
        """Return the output of a layer, and what the first layer reads."""
        del beside
        x, source = ops.split(x, [self.config.hidden] * 2, axis=-1)
        return ops.concat(list(layer(x, source)), axis=-1)

    def end(self, x: Value) -> Value:
        """Return the logits of the token after each position."""
        return super().end(x[..., : self.config.hidden])
