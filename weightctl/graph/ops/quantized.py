"""Operations on quantized weights: decoding, and selecting rows by index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.dtype import as_dtype
from weightctl.errors import GraphError
from weightctl.graph.graph import apply, current_graph
from weightctl.graph.ops.lowering import decode_blocks, torch_device
from weightctl.graph.ops.rules import Op, require_integer
from weightctl.graph.ops.value_checks import clamp_rows, is_on_gpu
from weightctl.graph.scope import refusing
from weightctl.graph.types import TensorType
from weightctl.shape import Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.device import DeviceRef
    from weightctl.dtype import DType, DTypeLike, QuantizationEncoding
    from weightctl.graph.graph import GraphNode, Value, ValueLike


def dequantize(weight: Value, dtype: DTypeLike | None = None) -> Value:
    """Return the values of a quantized weight, on its device, in `dtype` or its original dtype.

    Other operations dequantize their inputs automatically. The engine decodes the blocks where the
    values are used. Raises `GraphError` if the value is not a quantized weight, or if the dtype is
    not a float dtype.
    """
    graph = current_graph()
    value = graph.value_of(weight)
    declared = find_blocks(value)
    if declared is None:
        with refusing("dequantize", value):
            raise GraphError(
                "the value is not a quantized weight",
                hint="use `cast` to change the dtype of other values",
            )
    original: TensorType = declared.attributes["original"]
    wanted = original.dtype if dtype is None else as_dtype(dtype)
    found = graph.dequantized.get((value.number, wanted))
    if found is None:
        found = graph.dequantized[value.number, wanted] = apply(
            DEQUANTIZE,
            value,
            encoding=declared.attributes["encoding"],
            dtype=wanted,
            shape=original.shape,
            device=original.device,
        )
    return found


def find_blocks(value: Value) -> GraphNode | None:
    """Return the node of a value that is a quantized weight, None for any other value."""
    node = current_graph().weight_node(value)
    return None if node is None or node.attributes["encoding"] is None else node


def dequantize_value(x: ValueLike) -> Value:
    """Return an argument as a value of the current graph, dequantized if it is quantized."""
    value = current_graph().value_of(x)
    return value if find_blocks(value) is None else dequantize(value)


def infer_dequantize(
    blocks: TensorType,
    *,
    encoding: QuantizationEncoding,
    dtype: DType,
    shape: Shape,
    device: DeviceRef,
) -> TensorType:
    """Return the type of the decoded values."""
    if not dtype.is_float:
        raise GraphError(
            f"dequantizing {blocks} from {encoding.name} gives floats, so the result "
            f"cannot be {dtype.value}",
            hint="dequantize to float32, then cast the result",
        )
    return TensorType(dtype, shape, device)


DEQUANTIZE = Op("dequantize", infer_dequantize, takes_blocks=True)


def embedding(weight: ValueLike, ids: ValueLike) -> Value:
    """Return row `ids[...]` of a table [rows, dim] for each of the ids: [..., dim].

    Only these rows of a quantized weight are dequantized, to its original dtype. Raises
    `GraphError` if the ids are not integers or the table does not have two dimensions.
    """
    graph = current_graph()
    table, rows = graph.value_of(weight), graph.value_of(ids)
    declared = find_blocks(table)
    if declared is None or declared.attributes["original"].rank != 2:
        return apply(EMBEDDING, dequantize_value(table), rows)
    original = declared.attributes["original"]
    return apply(
        EMBEDDING,
        table,
        rows,
        encoding=declared.attributes["encoding"],
        dtype=original.dtype,
        device=original.device,
    )


def infer_embedding(
    weight: TensorType,
    ids: TensorType,
    *,
    encoding: QuantizationEncoding | None = None,
    dtype: DType | None = None,
    device: DeviceRef | None = None,
) -> TensorType:
    """Return the type of the rows."""
    if weight.rank != 2:
        raise GraphError(
            f"the table must have 2 dimensions, [rows, dim], not {weight.rank}", hint="reshape it"
        )
    require_integer(ids)
    width = weight.shape[-1]
    if encoding is not None:
        width = encoding.encoding.elements_of(width)
    return TensorType(dtype or weight.dtype, Shape([*ids.shape, width]), device or weight.device)


def lower_embedding(
    weight: Tensor,
    ids: Tensor,
    *,
    encoding: QuantizationEncoding | None = None,
    dtype: DType | None = None,
    device: DeviceRef | None = None,
) -> Tensor:
    """Return a copy of the rows; raises `EngineError` if an id is not a row of the table."""
    import torch

    if not (ids.is_cpu and weight.is_cpu):
        # Blocks that the device cannot decode are on the CPU; the decoded values go to the device.
        ids = ids.to(weight.device)
    if is_on_gpu(ids):
        ids = clamp_rows(ids, weight.shape[0])
    try:
        rows = torch.embedding(weight, ids.long())
    except IndexError:
        clamp_rows(ids, weight.shape[0])  # this error names the row
        raise
    if encoding is None or dtype is None or device is None:
        return rows
    return decode_blocks(rows, encoding, dtype).to(torch_device(device))


EMBEDDING = Op("embedding", infer_embedding, lower_embedding, takes_blocks=True, picks_rows=True)
