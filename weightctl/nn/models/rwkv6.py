"""RWKV-6: layers of time mixing, and of a gated MLP that reads mixes of two positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.families.modules import at_layer
from weightctl.nn.models.block import make_norm
from weightctl.nn.models.decoder import Decoder
from weightctl.nn.module import Module
from weightctl.nn.recurrent.dynamic_mix import ChannelMix, DynamicTimeMix
from weightctl.nn.recurrent.state_space import HeadNumbers
from weightctl.nn.recurrent.time_mix import mix, shift

if TYPE_CHECKING:
    from typing import Any

    from weightctl.dtype import DType
    from weightctl.families.rwkv6 import Rwkv6Config
    from weightctl.graph.graph import Value
    from weightctl.nn.models.network import Beside


class Rwkv6Block(Module):
    """A layer of RWKV-6; its output is halved after each `rescale_every` layers."""

    def __init__(self, config: Rwkv6Config, layer: int, dtype: DType) -> None:
        every = config.rescale_every
        self.is_halved = every > 0 and (layer + 1) % every == 0
        self.attention_norm = make_norm(config, dtype)
        # `parallel` replaces this module and the MLP by others, which are called in the same way.
        self.rwkv: Module = DynamicTimeMix(
            config.hidden,
            config.heads,
            at_layer(config, "head_dim", layer),
            mix_rank=config.mix_rank,
            decay_rank=config.decay_rank,
            norm_epsilon=config.head_epsilon,
            dtype=dtype,
        )
        self.mlp_norm = make_norm(config, dtype)
        self.mlp_mix, self.mlp_mix_gate = HeadNumbers(config.hidden), HeadNumbers(config.hidden)
        self.mlp: Module = ChannelMix(
            config.hidden, at_layer(config, "intermediate", layer), dtype=dtype
        )

    def __call__(self, x: Value) -> Value:
        """Return the input of the next layer, in the shape of `x`."""
        mixed: Value = self.rwkv(self.attention_norm(x))
        x = x + mixed
        normal = self.mlp_norm(x)
        before = shift(normal)
        inner: Value = self.mlp(
            mix(normal, before, self.mlp_mix), mix(normal, before, self.mlp_mix_gate)
        )
        x = x + inner
        return x * 0.5 if self.is_halved else x


class Rwkv6Decoder(Decoder):
    """A decoder: from token ids, int64[batch, seq], to logits [batch, seq, vocabulary]."""

    config: Rwkv6Config

    def make_layer(self, layer: int) -> Module:
        return Rwkv6Block(self.config, layer, self.dtype)

    def through(self, layer: Any, x: Value, beside: Beside) -> Value:
        """Return the output of a layer."""
        del beside
        output: Value = layer(x)
        return output
