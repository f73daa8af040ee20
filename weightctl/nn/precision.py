"""Values of weights in the dtype that a layer computes in: the dtype of its inputs."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any

from weightctl.errors import ArgumentTypeError
from weightctl.graph.graph import Value
from weightctl.graph.ops.quantized import dequantize

if TYPE_CHECKING:
    from weightctl.dtype import DType
    from weightctl.graph.graph import Weight


def weight_as(weight: Weight, dtype: DType) -> Value:
    """Return the values of a weight in `dtype`; a quantized weight is dequantized."""
    if weight.quantization_encoding is not None:
        return dequantize(weight, dtype)
    return weight if weight.dtype is dtype else weight.cast(dtype)


def require_value(layer: object, given: Any) -> None:
    """Raise `ArgumentTypeError` if a layer is called with something that is not a graph value."""
    if not isinstance(given, Value):
        raise ArgumentTypeError(
            f"{type(layer).__name__} was called with {reprlib.repr(given)}, which is not "
            "a value of a graph",
            hint="call the layer inside `with Graph(...)`, with an input of the graph, a NumPy "
            "array or `ops.constant(numbers)`",
        )
