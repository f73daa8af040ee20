"""The linear layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.graph.weight import Weight
from weightctl.nn.cuts import CutAxis, cut_along, replicate_weights, unit_cuts
from weightctl.nn.divisible import Divisible
from weightctl.nn.precision import require_value, weight_as

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike, QuantizationEncoding
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.graph.value import Value
    from weightctl.nn.cuts import Ranges

__all__ = ["Linear"]


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

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return how the weights are cut so that each shard computes some of the outputs.

        Raises `ShardingError` where there are too few.
        """
        return self.cut_outputs([[each] for each in unit_cuts(devices, self.outputs)])

    def widths(self, devices: int) -> list[int]:
        """Return how many outputs each shard computes."""
        return [last - first for first, last in unit_cuts(devices, self.outputs)]

    def cut_outputs(self, ranges: Ranges) -> dict[Weight, ShardingStrategy]:
        """Return how the weights are cut so that each shard computes these outputs."""
        cut = {self.weight: cut_along(self.outputs, ranges)}
        return (
            cut
            if self.bias is None
            else {**cut, self.bias: cut_along(CutAxis(self.bias, 0), ranges)}
        )

    def cut_inputs(self, ranges: Ranges) -> dict[Weight, ShardingStrategy]:
        """Return how the weights are cut so that each shard takes these inputs.

        The sum of what the shards give is what the layer does.
        """
        whole = replicate_weights(len(ranges), self.bias)
        return {self.weight: cut_along(self.inputs, ranges), **whole}

    def take_shards(self) -> None:
        """Leave the bias to the shard with the first of the inputs: what all give is summed."""
        inputs = [cut.ranges for cut in self.weight.part or () if cut.axis == self.inputs.axis]
        if inputs and inputs[0][0][0] > 0:
            self.bias = None
