"""Feed-forward layers, which project each position to a wider space and back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph import ops
from weightctl.nn.layer_sharding import cut_parts, own_range, replicate_weights, segment_sizes
from weightctl.nn.linear import Linear
from weightctl.nn.module import Divisible
from weightctl.nn.norm import RMSNorm

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike, QuantizationEncoding
    from weightctl.graph.graph import Value, Weight
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.nn.xielu import XIELU
    from weightctl.split import Range

# Those of gpt-oss, which are in its configs, too.
_SWIGLU_ALPHA, _SWIGLU_LIMIT = 1.702, 7.0


def _gelu_tanh(x: Value) -> Value:
    return ops.gelu(x, approximate="tanh")


def _relu_squared(x: Value) -> Value:
    y = ops.relu(x)
    return y * y


ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "silu": ops.silu,
    "gelu": ops.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": ops.relu,
    "relu2": _relu_squared,
    "tanh": ops.tanh,
}


def _clamped_swiglu(gate: Value, up: Value) -> Value:
    gate = ops.minimum(gate, _SWIGLU_LIMIT)
    up = ops.clamp(up, -_SWIGLU_LIMIT, _SWIGLU_LIMIT)
    return gate * ops.sigmoid(gate * _SWIGLU_ALPHA) * (up + 1.0)


# How gate and up become one, where that is not a product with the activation of the gate.
GATED: dict[str, Callable[[Value, Value], Value]] = {"clamped_swiglu": _clamped_swiglu}


class MLP(Divisible):
    """`down(activation(up(x)))`.

    `xielu` is what is computed in place of the activation, if given. Raises `GraphError` if the
    activation is not in `ACTIVATIONS`.
    """

    def __init__(
        self,
        features: int,
        intermediate: int,
        activation: str,
        *,
        bias: bool = True,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
        quantization_encoding: QuantizationEncoding | None = None,
        transposed: bool = False,
        xielu: XIELU | None = None,
    ) -> None:
        self.activation = _check_activation(activation) if xielu is None else activation
        self.xielu = xielu
        linear = partial(
            Linear,
            bias=bias,
            dtype=dtype,
            device=device,
            quantization_encoding=quantization_encoding,
            transposed=transposed,
        )
        self.up = linear(features, intermediate)
        self.down = linear(intermediate, features)

    def __call__(self, x: Value) -> Value:
        """Return outputs in the shape of the inputs, `(..., features)`."""
        up = self.up(x)
        return self.down(ACTIVATIONS[self.activation](up) if self.xielu is None else self.xielu(up))

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard computes a part of the intermediate features.

        Raises `ShardingError` if there are fewer blocks of them than devices.
        """
        cuts = cut_parts({"mlp.down": self.down, "mlp.up": self.up}, devices)
        if self.xielu is not None:
            cuts |= replicate_weights(devices, *self.xielu.list_weights())
        return cuts


class GatedMLP(Divisible):
    """`down(activation(gate(x)) * up(x))`.

    `gate_scale` multiplies what the activation reads. With an `inner_norm`, its epsilon, the
    product is normed. With a `limit`, gate and up are at most this, and up at least its negative;
    with `limits_activated`, not the gate is limited, but its activation.
    If `fused`, one projection `gate_up` replaces `gate` and `up`, with their rows in this order.
    `output_bias` (default: `bias`) is for `down`. `transposed` is passed to `Linear`.
    The activations in `GATED` are functions of gate and up together. Raises `GraphError` if the
    activation is in neither `GATED` nor `ACTIVATIONS`.
    """

    def __init__(
        self,
        features: int,
        intermediate: int,
        activation: str,
        *,
        bias: bool = False,
        output_bias: bool | None = None,
        fused: bool = False,
        gate_scale: float = 1.0,
        limit: float | None = None,
        limits_activated: bool = False,
        inner_norm: float | None = None,
        transposed: bool = False,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
        quantization_encoding: QuantizationEncoding | None = None,
    ) -> None:
        self.activation = activation if activation in GATED else _check_activation(activation)
        linear = partial(
            Linear,
            bias=bias,
            transposed=transposed,
            dtype=dtype,
            device=device,
            quantization_encoding=quantization_encoding,
        )
        self.intermediate = intermediate
        self.gate_scale = gate_scale
        self.limit, self.limits_activated = limit, limits_activated
        self.fused = fused
        if fused:
            self.gate_up = linear(features, 2 * intermediate)
        else:
            self.gate = linear(features, intermediate)
            self.up = linear(features, intermediate)
        self.down = linear(
            intermediate, features, bias=bias if output_bias is None else output_bias
        )
        self.has_inner_norm = inner_norm is not None
        if inner_norm is not None:
            self.inner_norm = RMSNorm(intermediate, inner_norm, dtype=dtype, device=device)
        # Which of the intermediate features a shard has, where all are normed together.
        self.own: Range | None = None

    def __call__(self, x: Value) -> Value:
        """Return outputs in the shape of the inputs, `(..., features)`."""
        gate, up = self._projections(x)
        if self.gate_scale != 1:
            gate = gate * self.gate_scale
        if self.limit is not None:
            up = ops.clamp(up, -self.limit, self.limit)
            gate = gate if self.limits_activated else ops.minimum(gate, self.limit)
        if self.activation in GATED:
            return self.down(GATED[self.activation](gate, up))
        gate = ACTIVATIONS[self.activation](gate)
        if self.limit is not None and self.limits_activated:
            gate = ops.minimum(gate, self.limit)
        y = gate * up
        if self.has_inner_norm:
            y = self.inner_norm(y)
            y = y if self.own is None else y[..., self.own[0] : self.own[1]]
        return self.down(y)

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard computes a part of the intermediate features.

        Raises `ShardingError` if there are fewer blocks of them than devices.
        """
        parts = {"mlp.down": self.down}
        if self.has_inner_norm:
            # Of all features together: every rank computes them all.
            whole = (self.gate.weight, self.gate.bias, self.up.weight, self.up.bias)
            cuts = cut_parts(parts, devices)
            return cuts | replicate_weights(devices, *whole, self.inner_norm.weight)
        if self.fused:
            parts |= {"mlp.gate_up": self.gate_up}
        else:
            parts |= {"mlp.gate": self.gate, "mlp.up": self.up}
        return cut_parts(parts, devices)

    def take_shards(self) -> None:
        """Adopt the number of intermediate features of a shard."""
        if self.has_inner_norm:
            self.own = own_range(self.down.inputs)
        elif self.fused:
            halves = segment_sizes(self.gate_up.outputs, [self.intermediate] * 2)
            self.intermediate = halves[0]
        else:
            self.intermediate = self.gate.outputs.size

    def _projections(self, x: Value) -> tuple[Value, ...]:
        if self.fused:
            return tuple(ops.split(self.gate_up(x), [self.intermediate] * 2, axis=-1))
        return self.gate(x), self.up(x)


def _check_activation(activation: str) -> str:
    if activation not in ACTIVATIONS:
        raise GraphError(
            f"`{activation}` is not a supported activation",
            hint=f"use one of {', '.join(ACTIVATIONS)}",
        )
    return activation
