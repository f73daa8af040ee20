"""Causal convolutions of channels, and the short convolution that replaces attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.graph.graph import Weight
from weightctl.nn.layer_sharding import CutAxis, cut_along, cut_parts
from weightctl.nn.linear import Linear
from weightctl.nn.module import Divisible, Module
from weightctl.nn.positions import with_tail
from weightctl.nn.precision import require_value, weight_as

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike
    from weightctl.graph.graph import Value
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.nn.layer_sharding import MatrixLayer, Ranges


class CausalConvolution(Module):
    """A convolution over positions in which each channel has its own weights.

    `weight` is [channels, kernel]: the last element of a row multiplies the value at the position
    itself, and the others those of the positions before it.
    """

    def __init__(
        self,
        channels: int,
        kernel: int,
        *,
        bias: bool = False,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
    ) -> None:
        self.weight = Weight("weight", dtype, (channels, kernel), device)
        self.bias = Weight("bias", dtype, (channels,), device) if bias else None

    def __call__(self, x: Value) -> Value:
        """Return the outputs, in the shape of the inputs: `(batch, positions, channels)`."""
        require_value(self, x)
        bias = None if self.bias is None else weight_as(self.bias, x.dtype)
        weight = weight_as(self.weight, x.dtype)
        before = int(weight.shape[1]) - 1
        return with_tail(x, before, lambda given: ops.causal_convolution(given, weight, bias))

    @property
    def axes(self) -> tuple[CutAxis, CutAxis]:
        """The axes of the weight for its channels and for the positions that it reads."""
        return CutAxis(self.weight, 0), CutAxis(self.weight, 1)

    def cut(self, axis: int, ranges: Ranges) -> dict[Weight, ShardingStrategy]:
        """Return the weights' strategies if shards get these channels (`axis` 0)."""
        made = {self.weight: cut_along(self.axes[axis], ranges)}
        if self.bias is not None:
            made[self.bias] = cut_along(CutAxis(self.bias, 0), ranges)
        return made


class ShortConvolution(Divisible):
    """A causal convolution between two gates, in place of attention.

    One projection computes two gates and the values, each of `features` channels. The convolution
    reads the product of the first gate and the values, the second gate multiplies its result, and
    another projection returns the outputs.

    Source: transformers' `Lfm2ShortConv`.
    """

    def __init__(
        self,
        features: int,
        kernel: int,
        *,
        bias: bool = False,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
    ) -> None:
        self.inputs = Linear(features, 3 * features, bias, dtype=dtype, device=device)
        self.kernel = CausalConvolution(features, kernel, bias=bias, dtype=dtype, device=device)
        self.outputs = Linear(features, features, bias, dtype=dtype, device=device)

    def __call__(self, x: Value) -> Value:
        """Return outputs in the shape of the inputs, `(batch, positions, features)`."""
        first_gate, last_gate, values = ops.chunk(self.inputs(x), 3, axis=-1)
        return self.outputs(last_gate * self.kernel(first_gate * values))

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard has some of the channels.

        Raises `ShardingError` if there are fewer channels, or blocks of them, than devices.
        """
        parts: dict[str, MatrixLayer] = {
            "convolution.inputs": self.inputs,
            "convolution.kernel": self.kernel,
            "convolution.outputs": self.outputs,
        }
        return cut_parts(parts, devices)
