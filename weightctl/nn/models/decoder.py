"""The Modules of decoders; the config selects the blocks."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weightctl.dtype import DType
from weightctl.families.modules import at_layer
from weightctl.graph import ops
from weightctl.nn.linear import Linear
from weightctl.nn.models.block import make_mlp, make_norm
from weightctl.nn.models.blocks import BlockNetwork
from weightctl.nn.models.layer_inputs import LayerInput, LayerInputs, LayerScale
from weightctl.nn.models.mixers import make_attention
from weightctl.nn.module import Module
from weightctl.nn.positions import list_positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.families.decoder import DecoderConfig
    from weightctl.families.per_layer import PerLayerConfig
    from weightctl.graph.graph import Value
    from weightctl.nn.attention import Attention
    from weightctl.nn.models.network import Beside


class Decoder(BlockNetwork):
    """A decoder: from token ids, int64[batch, seq], to logits [batch, seq, vocabulary]."""

    def __init__(self, config: DecoderConfig, dtype: DType = DType.float32) -> None:
        super().__init__(config, dtype)
        self.norm = make_norm(config, dtype)
        self.output = Linear(config.hidden, config.vocabulary, bias=config.output_bias, dtype=dtype)
        if config.tied:
            self.output.set_shared_weight("weight", self.embedding.weight)

    def begin(self, tokens: Value) -> tuple[Value, Beside]:
        """Return the tokens' vectors, and the cosines and sines of the positions."""
        positions = list_positions(tokens.shape[1], tokens.device)
        return self.look_up(tokens, positions), self.rotations(positions)

    def end(self, x: Value) -> Value:
        """Return the logits of the token after each position."""
        config = self.config
        logits = self.output(self.norm(x))
        if config.logit_scale != 1:
            logits = logits * config.logit_scale
        if config.logit_divisor != 1:
            logits = logits / config.logit_divisor
        cap = config.softcap
        return logits if cap is None else ops.tanh(logits / cap) * cap


class PerLayerDecoder(Decoder):
    """A decoder: from token ids, int64[batch, seq], to logits [batch, seq, vocabulary].

    Its layers read embeddings of their own. The last ones compute keys and values from what the
    attention of an earlier layer reads, with the weights of that layer. The layers pass this on in
    one tensor: [batch, seq, hidden], or several of them, then as much for each type of attention
    that is shared.
    """

    config: PerLayerConfig

    def __init__(self, config: PerLayerConfig, dtype: DType = DType.float32) -> None:
        super().__init__(config, dtype)
        share_keys(config, [layer.attention for layer in self.layers])
        if config.layer_input:
            self.layer_inputs = LayerInputs(
                config.layer_rows,
                config.hidden,
                layers=config.layers,
                size=config.layer_input,
                eps=config.norm_epsilon,
                dtype=dtype,
            )

    def make_layer(self, layer: int) -> Module:
        return PerLayerBlock(self.config, layer, self.dtype)

    @cached_property
    def sources(self) -> tuple[int, ...]:
        """The layers whose keys and values later layers use."""
        config = self.config
        used = {config.keys_of(layer) for layer in range(config.layers)
                if not at_layer(config, "own_keys", layer)}  # fmt: skip
        return tuple(sorted(used))

    def begin(self, tokens: Value) -> tuple[Value, Beside]:
        """Return the tokens' vectors, and what all layers read.

        These are the cosines and sines of the positions, and the embeddings for the layers.
        """
        config = self.config
        x, beside = super().begin(tokens)
        if config.layer_input:
            is_whole = config.layer_rows >= config.vocabulary
            beside = (*beside, self.layer_inputs(tokens, x, is_whole=is_whole))
        return self.enter(x), beside

    @property
    def width(self) -> int:
        """The size of what a layer passes on, without what the attention of the sources reads."""
        return self.config.hidden

    def enter(self, x: Value) -> Value:
        """Return the input of the first layer: the tokens' vectors, and as much for each source."""
        return ops.concat([x] * (1 + len(self.sources)), axis=-1)

    def through(self, layer: Any, x: Value, beside: Beside) -> Value:
        """Return the output of a layer, and what the attention of the sources reads."""
        config = self.config
        sizes = [self.width, *[config.hidden] * len(self.sources)]
        x, *kept = ops.split(x, sizes, axis=-1)
        given = None
        if config.layer_input:
            first = layer.number * config.layer_input
            given = beside[-1][..., first : first + config.layer_input]
        used = config.keys_of(layer.number)
        source = None if used == layer.number else kept[self.sources.index(used)]
        cos, sin = beside[2 * layer.rotation :][:2]
        x, normal = layer(x, cos, sin, given, source)
        if layer.number in self.sources:
            kept[self.sources.index(layer.number)] = normal
        return ops.concat([x, *kept], axis=-1) if kept else x

    def end(self, x: Value) -> Value:
        """Return the logits of the token after each position."""
        return super().end(self.merge(x[..., : self.width]))

    def merge(self, x: Value) -> Value:
        """Return the vectors that the last norm reads, [batch, seq, hidden]."""
        return x


# A layer that reads an embedding of its own, and may share keys and values with an earlier one.


class PerLayerBlock(Module):
    """A layer that may read its own embedding of a token, and the keys of an earlier layer.

    Attention and MLP have a norm before and after them. With experts, an MLP and the experts read
    the sum after attention, each through its own norm, and both are normed and added.
    `rotation` is the number of the rotary embedding, and `number` that of the layer.
    """

    def __init__(self, config: PerLayerConfig, layer: int, dtype: DType) -> None:
        self.config, self.number = config, layer
        self.rotation = int(config.local_rope_base is not None and config.has_window(layer))
        self.attention_norm = make_norm(config, dtype)
        # `parallel` replaces this module and the MLP by others, which are called in the same way.
        self.attention: Module = make_attention(config, layer, dtype)
        self.post_attention_norm = make_norm(config, dtype)
        self.mlp_norm = make_norm(config, dtype)
        self.has_experts = config.experts > 0
        if self.has_experts:
            self.dense = make_mlp(replace(config, experts=0), layer, dtype)
            self.post_dense_norm = make_norm(config, dtype)
            self.router_norm = make_norm(config, dtype)
            self.expert_norm = make_norm(config, dtype)
            self.post_expert_norm = make_norm(config, dtype)
        self.mlp: Module = make_mlp(config, layer, dtype)
        self.post_mlp_norm = make_norm(config, dtype)
        if config.layer_input:
            self.layer_input = LayerInput(
                config.hidden,
                config.layer_input,
                config.activation,
                eps=config.norm_epsilon,
                dtype=dtype,
            )
        if config.layer_scale:
            self.scale = LayerScale(dtype)

    def __call__(
        self, x: Value, cos: Value, sin: Value, given: Value | None, source: Value | None
    ) -> tuple[Value, Value]:
        """Return the input of the next layer, and what attention reads, in the shape of `x`.

        `given` is the layer's own embedding, and `source` what keys and values are computed from if
        that is not the layer's own input.
        """
        normal = self.attention_norm(x)
        attended: Value = self.attention(normal, cos, sin, None, source)
        x = x + self.post_attention_norm(attended)
        x = x + self.post_mlp_norm(self._compute_inner(x))
        if given is not None:
            x = x + self.layer_input(x, given)
        return self.scale(x) if self.config.layer_scale else x, normal

    def _compute_inner(self, x: Value) -> Value:
        if not self.has_experts:
            inner: Value = self.mlp(self.mlp_norm(x))
            return inner
        dense = self.post_dense_norm(self.dense(self.mlp_norm(x)))
        routed = self.router_norm(x) * self.config.hidden**-0.5
        mixed: Value = self.mlp(self.expert_norm(x), routed)
        return dense + self.post_expert_norm(mixed)


def share_keys(config: PerLayerConfig, attention: Sequence[Any]) -> None:
    """Let layers without keys of their own use the weights of the layers whose keys they share."""
    for layer, own in enumerate(attention):
        shared: Attention = attention[config.keys_of(layer)]
        if own is shared:
            continue
        own.k.set_shared_weight("weight", shared.k.weight)
        if not shared.values_from_keys:
            own.v.set_shared_weight("weight", shared.v.weight)
        if shared.k_norm.weight is not None:
            own.k_norm.set_shared_weight("weight", shared.k_norm.weight)
