"""The table of vectors that tokens, positions and the like stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.graph.weight import Weight
from weightctl.nn.module import Module

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dtype import QuantizationEncoding
    from weightctl.graph.value import Value

__all__ = ["Embedding"]


class Embedding(Module):
    """The rows of a table, `(count, features)`, that integers point at."""

    def __init__(
        self,
        count: int,
        features: int,
        *,
        dtype: DType = DType.float32,
        device: DeviceRef = CPU,
        quantization_encoding: QuantizationEncoding | None = None,
    ) -> None:
        self.weight = Weight("weight", dtype, (count, features), device, quantization_encoding)

    def __call__(self, indices: Value, dtype: DType | None = None) -> Value:
        """Return the rows, `indices.shape + (features,)`, in `dtype`, else in the table's own."""
        rows = ops.embedding(self.weight, indices)
        # The rows are cast, not the table: they are few.
        return rows if dtype is None or dtype is rows.dtype else rows.cast(dtype)
