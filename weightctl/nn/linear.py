"""The linear layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.graph.weight import Weight
from weightctl.nn.module import Module
from weightctl.nn.precision import weight_as

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dtype import QuantizationEncoding
    from weightctl.graph.value import Value

__all__ = ["Linear"]


class Linear(Module):
    """`x @ weight.T + bias`, with weights shaped `(out_features, in_features)`.

    With `transposed` they are `(in_features, out_features)`, as GPT-2's checkpoints store them.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        dtype: DType = DType.float32,
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
        weight = weight_as(self.weight, x.dtype)
        y = x @ (weight if self.transposed else weight.T)
        return y if self.bias is None else y + weight_as(self.bias, x.dtype)
