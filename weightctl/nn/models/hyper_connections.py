"""Hyper-connections: layers that pass on several streams of vectors, and mix them by weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.graph.graph import Weight
from weightctl.nn.module import Module
from weightctl.nn.precision import weight_as

if TYPE_CHECKING:
    from weightctl.graph.graph import Value


class Float32Tensor(Module):
    """A weight that is computed with in float32, in any dtype of the activations."""

    def __init__(self, *shape: int) -> None:
        self.weight = Weight("weight", DType.float32, shape)

    def __call__(self) -> Value:
        return weight_as(self.weight, DType.float32)


class StreamProjections(Module):
    """Numbers for mixing streams, computed from all of them: a norm, and one projection.

    `kinds` are the sizes of the kinds of numbers; each kind has a factor of its own.
    """

    def __init__(self, streams: int, features: int, kinds: tuple[int, ...], eps: float) -> None:
        self.streams, self.features, self.kinds, self.eps = streams, features, kinds, eps
        self.projection = Float32Tensor(sum(kinds), streams * features)
        self.offsets = Float32Tensor(sum(kinds))
        self.scales = Float32Tensor(len(kinds))

    def compute(self, x: Value) -> list[Value]:
        """Return the numbers of each kind, float32[..., kind], for streams [..., all streams]."""
        normal = ops.rms_norm(x.cast(DType.float32), None, self.eps)
        made = normal @ self.projection().T
        parts = ops.split(made, [*self.kinds], axis=-1)
        offsets = ops.split(self.offsets(), [*self.kinds], axis=-1)
        scales = self.scales()
        return [
            part * scales[number : number + 1] + offset
            for number, (part, offset) in enumerate(zip(parts, offsets, strict=True))
        ]

    def apart(self, x: Value) -> Value:
        """Return streams of [..., all streams] as [..., streams, features]."""
        return x.reshape((*x.shape[:-1], self.streams, self.features))

    def sum_streams(self, x: Value, factors: Value) -> Value:
        """Return the sum of the streams times factors, [..., features]."""
        factors = ops.unsqueeze(factors, -1)
        return ops.sum(self.apart(x).cast(DType.float32) * factors, axis=-2).cast(x.dtype)


class HyperConnection(StreamProjections):
    """The mixing of streams around attention or an MLP, which reads and returns one vector.

    It reads a weighted sum of the streams. Each stream becomes a weighted sum of all streams, plus
    its share of what was returned. The weights between streams are made doubly stochastic: their
    rows and columns are divided by their sums in turn, `steps` times. `small` is added to weights
    and sums.

    Source: Xie et al., "mHC: Manifold-Constrained Hyper-Connections" (2025), as transformers'
    `DeepseekV4HyperConnection` has it.
    """

    def __init__(
        self, streams: int, features: int, *, steps: int, small: float, eps: float
    ) -> None:
        super().__init__(streams, features, (streams, streams, streams * streams), eps)
        self.steps, self.small = steps, small

    def __call__(self, x: Value) -> tuple[Value, Value, Value]:
        """Return what is read, the share of each stream, and the weights between streams.

        `x` is [..., all streams]; the results are [..., features], [..., streams] and
        [..., streams, streams].
        """
        before, after, between = self.compute(x)
        read = self.sum_streams(x, ops.sigmoid(before) + self.small)
        square = between.reshape((*between.shape[:-1], self.streams, self.streams))
        weights = self._divide(ops.softmax(square, -1) + self.small, -2)
        for _ in range(self.steps - 1):
            weights = self._divide(self._divide(weights, -1), -2)
        return read, ops.sigmoid(after) * 2.0, weights

    def mix(self, x: Value, returned: Value, shares: Value, weights: Value) -> Value:
        """Return the streams after attention or an MLP, in the shape of `x`."""
        mixed = weights.cast(x.dtype).transpose(-1, -2) @ self.apart(x)
        added = ops.unsqueeze(shares.cast(x.dtype), -1) * ops.unsqueeze(returned, -2)
        return (mixed + added).reshape(x.shape)

    def _divide(self, weights: Value, axis: int) -> Value:
        return weights / (ops.sum(weights, axis=axis, keepdims=True) + self.small)


class IndependentConnection(StreamProjections):
    """The mixing of streams around attention or an MLP, which reads and returns one vector.

    It reads a weighted sum of the streams. What was returned is added to each stream, times its
    share. `magnitude` is the factor of shares, and `small` is added to weights and shares.

    Source: transformers' `HYV4HyperConnection`.
    """

    def __init__(
        self, streams: int, features: int, *, magnitude: float, small: float, eps: float
    ) -> None:
        super().__init__(streams, features, (streams, streams), eps)
        self.magnitude, self.small = magnitude, small

    def __call__(self, x: Value) -> tuple[Value, Value]:
        """Return what is read, [..., features], and the share of each stream, [..., streams]."""
        before, after = self.compute(x)
        read = self.sum_streams(x, ops.sigmoid(before) + self.small)
        return read, ops.sigmoid(after) * self.magnitude + self.small

    def add(self, x: Value, returned: Value, shares: Value) -> Value:
        """Return the streams after attention or an MLP, in the shape of `x`."""
        added = ops.unsqueeze(shares, -1) * ops.unsqueeze(returned.cast(DType.float32), -2)
        return (self.apart(x).cast(DType.float32) + added).cast(x.dtype).reshape(x.shape)


class StreamOutput(StreamProjections):
    """The weighted sum of the streams that the last norm reads."""

    def __init__(self, streams: int, features: int, *, small: float, eps: float) -> None:
        super().__init__(streams, features, (streams,), eps)
        self.small = small

    def __call__(self, x: Value) -> Value:
        """Return [..., features] for streams [..., all streams]."""
        (factors,) = self.compute(x)
        return self.sum_streams(x, ops.sigmoid(factors) + self.small)
