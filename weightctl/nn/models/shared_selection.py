"""The Module of decoders in which layers see the keys that an earlier layer's indexer selects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.dtype import DType
from weightctl.families.modules import at_layer
from weightctl.graph import ops
from weightctl.nn.models.block import make_mlp, make_norm
from weightctl.nn.models.decoder import Decoder
from weightctl.nn.models.hyper_connections import IndependentConnection, StreamOutput
from weightctl.nn.models.mixers import make_attention
from weightctl.nn.module import Module

if TYPE_CHECKING:
    from weightctl.families.compressed import IndependentStreamsConfig
    from weightctl.families.decoder import DecoderConfig
    from weightctl.graph.graph import Value
    from weightctl.nn.models.network import Beside


class SelectingBlock(Module):
    """A layer whose attention may use the selection of an earlier layer's indexer.

    `rotation` is the number of the rotary embedding. `has_indexer` states whether the indexer is
    the layer's own.
    """

    def __init__(self, config: DecoderConfig, layer: int, dtype: DType) -> None:
        self.rotation = 0
        self.has_indexer: bool = at_layer(config, "indexer_layers", layer)
        self.attention_norm = make_norm(config, dtype)
        # `parallel` replaces this module and the MLP by others, which are called in the same way.
        self.attention: Module = make_attention(config, layer, dtype)
        self.mlp_norm = make_norm(config, dtype)
        self.mlp: Module = make_mlp(config, layer, dtype)

    def __call__(
        self, x: Value, cos: Value, sin: Value, source: Value | None
    ) -> tuple[Value, Value]:
        """Return the input of the next layer, and what attention reads, in the shape of `x`.

        `source` is what the attention with the shared indexer reads, if that is another layer's.
        """
        normal = self.attention_norm(x)
        attended: Value = self.attention(normal, cos, sin, None, source)
        x = x + attended
        inner: Value = self.mlp(self.mlp_norm(x))
        return x + inner, normal


class SharedSelectionDecoder(Decoder):
    """A decoder: from token ids, int64[batch, seq], to logits [batch, seq, vocabulary].

    Layers without an indexer use the selection of the last layer before them that has one. They
    compute it again, from what the attention of that layer reads. If there are such layers, all
    layers pass this on behind their output: [batch, seq, 2 * hidden].

    Source: transformers' `GlmMoeDsaModel`.
    """

    def __init__(self, config: DecoderConfig, dtype: DType = DType.float32) -> None:
        super().__init__(config, dtype)
        self.is_shared = not all(layer.has_indexer for layer in self.layers)
        source: Any = None
        for layer in self.layers:
            if layer.has_indexer:
                source = layer.attention
            else:
                layer.attention.share_indexer(source)

    def make_layer(self, layer: int) -> Module:
        return SelectingBlock(self.config, layer, self.dtype)

    def begin(self, tokens: Value) -> tuple[Value, Beside]:
        """Return the input of the first layer, and the cosines and sines of the positions."""
        x, beside = super().begin(tokens)
        entering = self.enter(x)
        return ops.concat([entering, x], axis=-1) if self.is_shared else entering, beside

    def through(self, layer: Any, x: Value, beside: Beside) -> Value:
        """Return the output of a layer, and what the attention with the last indexer reads."""
        if not self.is_shared:
            made: Value = layer(x, *beside, None)[0]
            return made
        x, source = ops.split(x, [self.width, self.config.hidden], axis=-1)
        x, normal = layer(x, *beside, source)
        return ops.concat([x, normal if layer.has_indexer else source], axis=-1)

    def end(self, x: Value) -> Value:
        """Return the logits of the token after each position."""
        return super().end(self.merge(x[..., : self.width]))

    @property
    def width(self) -> int:
        """The size of what a layer passes on, without what the attention of another layer reads."""
        return self.config.hidden

    def enter(self, x: Value) -> Value:
        """Return the input of the first layer for the tokens' vectors."""
        return x

    def merge(self, x: Value) -> Value:
        """Return the vectors that the last norm reads, [batch, seq, hidden]."""
        return x


class StreamingBlock(SelectingBlock):
    """A layer of several streams: attention and an MLP, each with a connection to the streams."""

    def __init__(self, config: IndependentStreamsConfig, layer: int, dtype: DType) -> None:
        super().__init__(config, layer, dtype)
        self.attention_streams, self.mlp_streams = (
            IndependentConnection(
                config.streams,
                config.hidden,
                magnitude=config.stream_magnitude,
                small=config.stream_epsilon,
                eps=config.norm_epsilon,
            )
            for _ in range(2)
        )

    def __call__(
        self, x: Value, cos: Value, sin: Value, source: Value | None
    ) -> tuple[Value, Value]:
        """Return the streams of the next layer, in the shape of `x`, and what attention reads."""
        read, shares = self.attention_streams(x)
        normal = self.attention_norm(read)
        attended: Value = self.attention(normal, cos, sin, None, source)
        x = self.attention_streams.add(x, attended, shares)
        read, shares = self.mlp_streams(x)
        inner: Value = self.mlp(self.mlp_norm(read))
        return self.mlp_streams.add(x, inner, shares), normal


class StreamingDecoder(SharedSelectionDecoder):
    """A decoder: from token ids, int64[batch, seq], to logits [batch, seq, vocabulary].

    Its layers pass on several streams of vectors, which all begin as the tokens' vectors.

    Source: transformers' `HYV4Model`.
    """

    config: IndependentStreamsConfig

    def __init__(self, config: IndependentStreamsConfig, dtype: DType = DType.float32) -> None:
        super().__init__(config, dtype)
        self.stream_output = StreamOutput(
            config.streams, config.hidden, small=config.stream_epsilon, eps=config.norm_epsilon
        )

    def make_layer(self, layer: int) -> Module:
        return StreamingBlock(self.config, layer, self.dtype)

    @property
    def width(self) -> int:
        """The size of all streams."""
        return self.config.all_streams

    def enter(self, x: Value) -> Value:
        """Return the streams, which are all the tokens' vectors."""
        return ops.concat([x] * self.config.streams, axis=-1)

    def merge(self, x: Value) -> Value:
        """Return the weighted sum of the streams."""
        return self.stream_output(x)
