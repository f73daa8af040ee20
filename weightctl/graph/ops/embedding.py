"""Rows of a table by their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.ops.blocks import decode_blocks
from weightctl.graph.ops.bounds import require_inside
from weightctl.graph.ops.dequantize import blocks_of, numbers_of
from weightctl.graph.ops.rules import require_integer
from weightctl.graph.scope import current_graph
from weightctl.graph.types import TensorType
from weightctl.graph.value import apply
from weightctl.shape import Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.device import DeviceRef
    from weightctl.dtype import DType, QuantizationEncoding
    from weightctl.graph.value import Value, ValueLike

__all__ = ["TAKES_BLOCKS", "embedding", "infer", "lower"]

# Only the rows that are asked for are dequantized, here.
TAKES_BLOCKS = True


def embedding(weight: ValueLike, ids: ValueLike) -> Value:
    """Return row `ids[...]` of a table [rows, dim] for each of the ids: [..., dim].

    Of a quantized weight only these rows are dequantized, to its original dtype. Raises
    `GraphError` for ids that are no integers and a table that has not two dimensions.
    """
    graph = current_graph()
    table, rows = graph.value_of(weight), graph.value_of(ids)
    declared = blocks_of(table)
    if declared is None or declared.attributes["original"].rank != 2:
        return apply("embedding", numbers_of(table), rows)
    original = declared.attributes["original"]
    return apply(
        "embedding",
        table,
        rows,
        encoding=declared.attributes["encoding"],
        dtype=original.dtype,
        device=original.device,
    )


def infer(
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
            f"the table has {weight.rank} dimensions, not 2: [rows, dim]", hint="reshape it"
        )
    require_integer(ids)
    width = weight.shape[-1]
    if encoding is not None:
        width = encoding.encoding.elements_of(width)
    return TensorType(dtype or weight.dtype, Shape([*ids.shape, width]), device or weight.device)


def lower(
    weight: Tensor,
    ids: Tensor,
    *,
    encoding: QuantizationEncoding | None = None,
    dtype: DType | None = None,
    device: DeviceRef | None = None,
) -> Tensor:
    """Return a copy of the rows; `EngineError` for an id that the table has no row for."""
    from torch.nn import functional

    # Blocks stay on the CPU, whatever the device of their numbers.
    ids = ids.to(weight.device)
    require_inside(ids, weight.shape[0])
    rows = functional.embedding(ids.long(), weight)
    if encoding is None or dtype is None or device is None:
        return rows
    from weightctl.graph.ops.torch_types import torch_device

    return decode_blocks(rows, encoding, dtype).to(torch_device(device))
