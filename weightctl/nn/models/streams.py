"""What a layer with several streams of vectors consists of: AltUp, Laurel, and sparse gates.

Source: transformers' `modeling_gemma3n.py`.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.nn.cuts import cut_parts, replicate_weights
from weightctl.nn.linear import Linear
from weightctl.nn.mlp import ACTIVATIONS
from weightctl.nn.module import Divisible, Staged
from weightctl.nn.norm import RMSNorm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.graph.value import Value
    from weightctl.graph.weight import Weight

# The least mean square that vectors are divided by.
_LEAST = 1e-5


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
