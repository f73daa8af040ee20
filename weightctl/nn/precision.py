"""In what dtype a layer computes: that of its activations, whatever its weights are stored in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.graph.ops.dequantize import dequantize

if TYPE_CHECKING:
    from weightctl.dtype import DType
    from weightctl.graph.value import Value
    from weightctl.graph.weight import Weight

__all__ = ["weight_as"]


def weight_as(weight: Weight, dtype: DType) -> Value:
    """Return the numbers of a weight in `dtype`; blocks are dequantized."""
    if weight.quantization_encoding is not None:
        return dequantize(weight, dtype)
    return weight if weight.dtype is dtype else weight.cast(dtype)
