"""The linear layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.graph.graph import Weight
from weightctl.nn.layer_sharding import (
    CutAxis,
    cut_along,
    cut_parts,
    replicate_weights,
    share_parts,
)
from weightctl.nn.module import Divisible
from weightctl.nn.precision import require_value, weight_as

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike, QuantizationEncoding
    from weightctl.graph.graph import Value
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.nn.layer_sharding import Ranges

# The name in `ROLES` for a layer that is cut independently of other layers.
_ALONE = "output"


class Linear(Divisible):
    """`x @ weight.T + bias`, with weights of shape `(out_features, in_features)`.

    There is no bias by default, as in most current models; torch's layer has one by default. With
    `transposed`, the weights are `(in_features, out_features)`, as in GPT-2's checkpoints. The
    layer casts its weights to the dtype of its inputs and computes in it.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
        quantization_encoding: QuantizationEncoding | None = None,
        transposed: bool = False,
    ) -> None:
        shape = (in_features, out_features) if transposed else (out_features, in_features)
        self.transposed = transposed
        self.weight = Weight("weight", dtype, shape, device, quantization_encoding)
        self.bias = Weight("bias", dtype, (out_features,), device) if bias else None

    def __call__(self, x: Value) -> Value:
        """Return the layer's outputs, `(..., in_features)` to `(..., out_features)`."""
        require_value(self, x)
        weight = weight_as(self.weight, x.dtype)
        y = x @ (weight if self.transposed else weight.T)
        return y if self.bias is None else y + weight_as(self.bias, x.dtype)

    @property
    def inputs(self) -> CutAxis:
        """The axis of the weight for its inputs."""
        return CutAxis(self.weight, 0 if self.transposed else 1)

    @property
    def outputs(self) -> CutAxis:
        """The axis of the weight for its outputs."""
        return CutAxis(self.weight, 1 if self.transposed else 0)

    @property
    def axes(self) -> tuple[CutAxis, CutAxis]:
        """The axes of the weight for its outputs and for its inputs."""
        return self.outputs, self.inputs

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard computes some of the outputs.

        Raises `ShardingError` if there are fewer outputs, or blocks of them, than devices.
        """
        return cut_parts({_ALONE: self}, devices)

    def widths(self, devices: int) -> list[int]:
        """Return the number of outputs that each shard computes."""
        ranges = share_parts({_ALONE: self}, devices)[_ALONE]
        return [last - first for ((first, last),) in ranges]

    def cut(self, axis: int, ranges: Ranges) -> dict[Weight, ShardingStrategy]:
        """Return the weights' strategies if shards get these outputs (`axis` 0) or inputs (1).

        If inputs are cut, the outputs of the shards add up to those of the layer.
        """
        made = {self.weight: cut_along(self.axes[axis], ranges)}
        if self.bias is None:
            return made
        if axis:
            return made | replicate_weights(len(ranges), self.bias)
        return {**made, self.bias: cut_along(CutAxis(self.bias, 0), ranges)}

    def take_shards(self) -> None:
        """Keep the bias only in the shard with the first inputs, since outputs are summed."""
        inputs = [cut.ranges for cut in self.weight.part or () if cut.axis == self.inputs.axis]
        if inputs and inputs[0][0][0] > 0:
            self.bias = None
