"""The numbers of a weight that is kept as blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.dtype import as_dtype
from weightctl.errors import GraphError
from weightctl.graph.scope import current_graph, refusing
from weightctl.graph.types import TensorType
from weightctl.graph.value import Value, apply

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dtype import DType, DTypeLike, QuantizationEncoding
    from weightctl.graph.graph import GraphNode
    from weightctl.graph.value import ValueLike
    from weightctl.shape import Shape

__all__ = ["TAKES_BLOCKS", "blocks_of", "dequantize", "infer", "numbers_of"]

# Read by the graph, which dequantizes what it gives to all other operations.
TAKES_BLOCKS = True


def dequantize(weight: Value, dtype: DTypeLike | None = None) -> Value:
    """Return the numbers of a quantized weight, on its device, in `dtype` or its original one.

    Other operations do this by themselves. What runs a graph decodes the blocks where the numbers
    are used. Raises `GraphError` for a value that is no quantized weight, and for a dtype that is
    not a float.
    """
    graph = current_graph()
    value = graph.value_of(weight)
    declared = blocks_of(value)
    if declared is None:
        with refusing("dequantize", value):
            raise GraphError(
                "it is no quantized weight", hint="`cast` changes the dtype of other values"
            )
    original: TensorType = declared.attributes["original"]
    wanted = original.dtype if dtype is None else as_dtype(dtype)
    found = graph.dequantized.get((value.number, wanted))
    if found is None:
        found = graph.dequantized[value.number, wanted] = apply(
            "dequantize",
            value,
            encoding=declared.attributes["encoding"],
            dtype=wanted,
            shape=original.shape,
            device=original.device,
        )
    return found


def blocks_of(value: Value) -> GraphNode | None:
    """Return the node of the quantized weight that a value is, None for any other value."""
    node = current_graph().weight_node(value)
    return None if node is None or node.attributes["encoding"] is None else node


def numbers_of(x: ValueLike) -> Value:
    """Return what is given as a value of the current graph, dequantized where it is blocks."""
    value = current_graph().value_of(x)
    return value if blocks_of(value) is None else dequantize(value)


def infer(
    blocks: TensorType,
    *,
    encoding: QuantizationEncoding,
    dtype: DType,
    shape: Shape,
    device: DeviceRef,
) -> TensorType:
    """Return the type of the numbers."""
    if not dtype.is_float:
        raise GraphError(
            f"the numbers of {blocks} in {encoding.name} are floats, not {dtype.value}",
            hint="dequantize to float32 and cast that",
        )
    return TensorType(dtype, shape, device)
