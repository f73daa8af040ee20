"""The Module of decoders whose layers pass on several streams of vectors (AltUp)."""

from __future__ import annotations

from functools import reduce
from math import sqrt
from operator import add
from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.nn.base_layer import LayerList
from weightctl.nn.models.block import make_mlp, make_norm
from weightctl.nn.models.decoder import PerLayerDecoder
from weightctl.nn.models.layer_inputs import LayerInput, LayerScale
from weightctl.nn.models.mixers import make_attention
from weightctl.nn.models.streams import Laurel, SparseMLP, StreamCoefficients, StreamProjection
from weightctl.nn.module import Module

if TYPE_CHECKING:
    from weightctl.families.streams import StreamsConfig
    from weightctl.graph.value import Value


class StreamBlock(Module):
    """A layer that computes one of several streams, and corrects the others by the result.

    It reads its own embedding of a token, and may use the keys of an earlier layer. `rotation` is
    the number of the rotary embedding, and `number` that of the layer.

    Source: transformers' `Gemma3nTextDecoderLayer`.
    """

    def __init__(self, config: StreamsConfig, layer: int, dtype: DType) -> None:
        self.config, self.number = config, layer
        self.rotation = int(config.local_rope_base is not None and config.has_window(layer))
        hidden, eps = config.hidden, config.norm_epsilon
        self.altup = StreamCoefficients(hidden, config.streams, eps=eps, dtype=dtype)
        self.attention_norm = make_norm(config, dtype)
        self.laurel = Laurel(hidden, config.laurel_rank, eps=eps, dtype=dtype)
        # `parallel` replaces this module and the MLP by others, which are called in the same way.
        self.attention: Module = make_attention(config, layer, dtype)
        self.post_attention_norm = make_norm(config, dtype)
        self.mlp_norm = make_norm(config, dtype)
        self.mlp: Module = _make_mlp(config, layer, dtype)
        self.post_mlp_norm = make_norm(config, dtype)
        self.corrected_scale = LayerScale(dtype, hidden)
        self.layer_input = LayerInput(
            hidden, config.layer_input, config.activation, eps=eps, dtype=dtype
        )

    def __call__(
        self, x: Value, cos: Value, sin: Value, given: Value, source: Value | None
    ) -> tuple[Value, Value]:
        """Return the streams of the next layer, and what attention reads.

        `x` are the streams, `(batch, positions, streams * features)`, `given` is the layer's own
        embedding, and `source` what keys and values are computed from if that is not the layer's
        own input.
        """
        config = self.config
        active = config.active_stream
        predicted = self._predict(x)
        normal = self.attention_norm(predicted[active])
        attended: Value = self.attention(normal, cos, sin, None, source)
        y = predicted[active] + self.post_attention_norm(attended)
        y = (y + self.laurel(normal)) / sqrt(2)
        inner: Value = self.mlp(self.mlp_norm(y))
        y = y + self.post_mlp_norm(inner)
        factors = self.altup(y, corrects=True) + 1.0
        change = y - predicted[active]
        first, *others = (
            each + change * factors[..., number : number + 1]
            for number, each in enumerate(predicted)
        )
        corrected = [first, *others][active]
        added = self.layer_input(self.corrected_scale(corrected), given)
        return ops.concat([first, *(each + added for each in others)], axis=-1), normal

    def _predict(self, x: Value) -> list[Value]:
        """Return the streams that are predicted from all streams."""
        count, hidden = self.config.streams, self.config.hidden
        places = x.shape[:-1]
        streams = x.reshape((*places, count, hidden))
        active = x[..., self.config.active_stream * hidden :][..., :hidden]
        factors = self.altup(active, corrects=False).reshape((*places, count, count))
        predicted = (factors @ streams + streams).reshape(x.shape)
        return [*ops.split(predicted, [hidden] * count, axis=-1)]


class StreamDecoder(PerLayerDecoder):
    """A decoder: from token ids, int64[batch, seq], to logits [batch, seq, vocabulary].

    Its layers pass on several streams of vectors, [batch, seq, streams * hidden]. The first stream
    begins as the tokens' vectors, and the others as projections of them; the last norm reads the
    mean of the first stream and of projections of the others.
    """

    def __init__(self, config: StreamsConfig, dtype: DType = DType.float32) -> None:
        # The base class reads it as its own kind of config.
        self.stream_config = config
        super().__init__(config, dtype)
        self.stream_inputs, self.stream_outputs = (
            LayerList([StreamProjection(config.hidden, dtype) for _ in range(config.added_streams)])
            for _ in range(2)
        )

    def make_layer(self, layer: int) -> Module:
        """Return a layer."""
        return StreamBlock(self.stream_config, layer, self.dtype)

    @property
    def width(self) -> int:
        """The size of all streams together."""
        return self.stream_config.streams * self.stream_config.hidden

    def enter(self, x: Value) -> Value:
        """Return the input of the first layer: the streams, and the vectors for each source."""
        added = [projection(x, x) for projection in self.stream_inputs]
        return ops.concat([x, *added, *[x] * len(self.sources)], axis=-1)

    def merge(self, x: Value) -> Value:
        """Return the vectors that the last norm reads, [batch, seq, hidden]."""
        config = self.stream_config
        first, *others = ops.split(x, [config.hidden] * config.streams, axis=-1)
        projected = (
            projection(each, first)
            for projection, each in zip(self.stream_outputs, others, strict=True)
        )
        return reduce(add, projected, first) / config.streams


def _make_mlp(config: StreamsConfig, layer: int, dtype: DType) -> Module:
    sparsity = config.sparsity[layer]
    if not sparsity:
        return make_mlp(config, layer, dtype)
    width = config.intermediate
    return SparseMLP(
        config.hidden,
        width if isinstance(width, int) else width[layer],
        config.activation,
        sparsity=sparsity,
        dtype=dtype,
    )
