"""The Module of decoders whose layers pass on several streams of vectors (AltUp)."""

from __future__ import annotations

from functools import reduce
from math import sqrt
from operator import add
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.nn.base_layer import LayerList
from weightctl.nn.layer_sharding import cut_parts, replicate_weights
from weightctl.nn.linear import Linear
from weightctl.nn.mlp import ACTIVATIONS
from weightctl.nn.models.block import make_mlp, make_norm
from weightctl.nn.models.decoder import PerLayerDecoder
from weightctl.nn.models.layer_inputs import LayerInput, LayerScale
from weightctl.nn.models.mixers import make_attention
from weightctl.nn.module import Divisible, Module, Staged
from weightctl.nn.norm import RMSNorm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.families.streams import StreamsConfig
    from weightctl.graph.graph import Value, Weight
    from weightctl.graph.sharding import ShardingStrategy

# The least mean square that vectors are divided by.
_LEAST = 1e-5


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


# What a layer with several streams of vectors consists of: AltUp, Laurel, and sparse gates.


class StreamProjection(Divisible):
    """A projection of vectors whose results are made as long as given vectors.

    Every rank computes all of it.
    """

    def __init__(self, features: int, dtype: DType) -> None:
        self.projection = Linear(features, features, dtype=dtype)

    def __call__(self, x: Value, like: Value) -> Value:
        """Return the projection of `x` with the length of `like`; all are in one shape."""
        y = self.projection(x)
        found = ops.sqrt(ops.maximum(ops.mean(y * y, -1, keepdims=True), _LEAST))
        return y * ops.sqrt(ops.mean(like * like, -1, keepdims=True)) / found

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies that give every shard the whole matrix."""
        return replicate_weights(devices, self.projection.weight)


class StreamCoefficients(Divisible):
    """The coefficients by which `streams` streams are predicted and corrected (AltUp).

    They are linear functions of what a router computes of the active stream. Every rank computes
    all of them.
    """

    def __init__(self, features: int, streams: int, *, eps: float, dtype: DType) -> None:
        self.features = features
        self.norm = RMSNorm(features, eps, dtype=dtype)
        self.router = Linear(features, streams, dtype=dtype)
        self.prediction = Linear(streams, streams**2, dtype=dtype)
        self.correction = Linear(streams, streams, dtype=dtype)

    def __call__(self, x: Value, *, corrects: bool) -> Value:
        """Return the coefficients that correct, `(batch, positions, streams)`, or that predict.

        Those are `(batch, positions, streams**2)`: the ones of the first stream, then the ones of
        the second, and so on.
        """
        routed = self.router(self.norm(x) / self.features)
        routed = ops.tanh(routed.cast(DType.float32)).cast(x.dtype)
        return (self.correction if corrects else self.prediction)(routed)

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies that give every shard all weights."""
        linear = (self.router, self.prediction, self.correction)
        return replicate_weights(devices, self.norm.weight, *(each.weight for each in linear))


class Laurel(Divisible):
    """A residual of low rank: `x + norm(right(left(x)))`; every rank computes all of it."""

    def __init__(self, features: int, rank: int, *, eps: float, dtype: DType) -> None:
        self.left = Linear(features, rank, dtype=dtype)
        self.right = Linear(rank, features, dtype=dtype)
        self.norm = RMSNorm(features, eps, dtype=dtype)

    def __call__(self, x: Value) -> Value:
        """Return outputs in the shape of the inputs."""
        return x + self.norm(self.right(self.left(x)))

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies that give every shard all weights."""
        return replicate_weights(devices, self.left.weight, self.right.weight, self.norm.weight)


class _Gates(NamedTuple):
    """What a sparse MLP computes before it knows the threshold of the gates."""

    gates: Value
    up: Value
    dtype: DType


class SparseMLP(Staged):
    """`down(activation(max(gate(x) - threshold, 0)) * up(x))`.

    Of gates that are a normal distribution, the share `sparsity` is below the threshold, which
    follows from their mean and their standard deviation in each position.
    """

    def __init__(
        self, features: int, intermediate: int, activation: str, *, sparsity: float, dtype: DType
    ) -> None:
        self.activation = ACTIVATIONS[activation]
        # The number of gates of all shards together.
        self.count = intermediate
        self.deviations = NormalDist().inv_cdf(sparsity)
        self.gate = Linear(features, intermediate, dtype=dtype)
        self.up = Linear(features, intermediate, dtype=dtype)
        self.down = Linear(intermediate, features, dtype=dtype)

    def begin(self, x: Value) -> tuple[tuple[Value, ...], _Gates]:
        """Return the sums of the gates and of their squares, and the gates."""
        gates = self.gate(x).cast(DType.float32)
        sums = (ops.sum(each, -1, keepdims=True) for each in (gates, gates * gates))
        return tuple(sums), _Gates(gates, self.up(x), x.dtype)

    def finish(self, summed: Sequence[Value], kept: _Gates) -> Value:
        """Return outputs in the shape of the inputs, `(batch, positions, features)`."""
        mean, squares = (each / self.count for each in summed)
        deviation = ops.sqrt(ops.maximum(squares - mean * mean, 0.0))
        gates = ops.relu(kept.gates - (mean + deviation * self.deviations))
        return self.down(self.activation(gates.cast(kept.dtype)) * kept.up)

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard computes a part of the intermediate features.

        Raises `ShardingError` if there are fewer blocks of them than devices.
        """
        parts = {"mlp.down": self.down, "mlp.gate": self.gate, "mlp.up": self.up}
        return cut_parts(parts, devices)
