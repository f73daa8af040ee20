"""The linear layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.graph.weight import Weight
from weightctl.nn.cuts import CutAxis, cut_along, cut_parts, replicate_weights, share_parts
from weightctl.nn.module import Divisible
from weightctl.nn.precision import require_value, weight_as

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike, QuantizationEncoding
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.graph.value import Value
    from weightctl.nn.cuts import Ranges

__all__ = ["Linear"]

# What one is that no other layer computes with, as in `ROLES`.
_ALONE = "output"


class Linear(Divisible):
    """`x @ weight.T + bias`, with weights shaped `(out_features, in_features)`.

    There is no bias unless `bias=True` asks for one, as in most models of today; torch's layer has
    one by default. With `transposed` the weights are `(in_features, out_features)`, as GPT-2's
    checkpoints store them. It computes in the dtype of its inputs, to which it casts its weights.
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
        """The axis of the weight along which its inputs are."""
        return CutAxis(self.weight, 0 if self.transposed else 1)

    @property
    def outputs(self) -> CutAxis:
        """The axis of the weight along which its outputs are."""
        return CutAxis(self.weight, 1 if self.transposed else 0)

    @property
    def axes(self) -> tuple[CutAxis, CutAxis]:
        """The axes of the weight along which its outputs and its inputs are."""
        return self.outputs, self.inputs

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return how the weights are cut so that each shard computes some of the outputs.

        Raises `ShardingError` if there are too few.
        """
        return cut_parts({_ALONE: self}, devices)

    def widths(self, devices: int) -> list[int]:
        """Return how many outputs each shard computes."""
        ranges = share_parts({_ALONE: self}, devices)[_ALONE]
        return [last - first for ((first, last),) in ranges]

    def cut(self, axis: int, ranges: Ranges) -> dict[Weight, ShardingStrategy]:
        """Return how the weights are cut so that each shard has these outputs (0) or inputs (1).

        Where inputs are cut the sum of what the shards give is what the layer does.
        """
        made = {self.weight: cut_along(self.axes[axis], ranges)}
        if self.bias is None:
            return made
        if axis:
            return made | replicate_weights(len(ranges), self.bias)
        return {**made, self.bias: cut_along(CutAxis(self.bias, 0), ranges)}

    def take_shards(self) -> None:
        """Leave the bias to the shard with the first of the inputs: what all give is summed."""
        inputs = [cut.ranges for cut in self.weight.part or () if cut.axis == self.inputs.axis]
        if inputs and inputs[0][0][0] > 0:
            self.bias = None
