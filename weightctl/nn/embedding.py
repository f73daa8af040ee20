"""Embedding tables for tokens and positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph import ops
from weightctl.graph.graph import Weight
from weightctl.nn.layer_sharding import CutAxis, cut_along, cut_parts, replicate_weights
from weightctl.nn.module import Divisible

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike, QuantizationEncoding
    from weightctl.graph.graph import Value
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.nn.layer_sharding import Ranges


class Embedding(Divisible):
    """A table `(count, features)` whose rows are selected by integers.

    A shard that has some of the rows returns zeros for the others: the outputs of all shards add up
    to those of the whole table. If `replicated`, as for small tables, every rank gets the whole
    table.
    """

    def __init__(
        self,
        count: int,
        features: int,
        *,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
        quantization_encoding: QuantizationEncoding | None = None,
        replicated: bool = False,
    ) -> None:
        self.replicated = replicated
        self.weight = Weight("weight", dtype, (count, features), device, quantization_encoding)
        # The first row of a shard, the row after its last, and the number of rows of the table.
        self.rows: tuple[int, int, int] | None = None

    def __call__(self, indices: Value, dtype: DType | None = None) -> Value:
        """Return the rows, `indices.shape + (features,)`, in `dtype` or the dtype of the table."""
        if self.rows is None:
            return self._look_up(indices, dtype)
        first, last, count = self.rows
        before, behind = indices < first, indices >= last
        # An index outside the whole table is not replaced, so that it raises the usual error.
        is_elsewhere = (before & (indices >= 0)) | (behind & (indices < count))
        rows = self._look_up(ops.where(is_elsewhere, first, indices) - first, dtype)
        return ops.where(ops.unsqueeze(is_elsewhere, -1), 0.0, rows)

    def _look_up(self, indices: Value, dtype: DType | None) -> Value:
        rows = ops.embedding(self.weight, indices)
        # Cast the rows, not the table: they are few.
        return rows if dtype is None or dtype is rows.dtype else rows.cast(dtype)

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard has some of the rows.

        Raises `ShardingError` if there are fewer rows than devices.
        """
        if self.replicated:
            return replicate_weights(devices, self.weight)
        return cut_parts({"embedding": self}, devices)

    @property
    def axes(self) -> tuple[CutAxis, CutAxis]:
        """The axes of the table for its rows and for the features."""
        return CutAxis(self.weight, 0), CutAxis(self.weight, 1)

    def cut(self, axis: int, ranges: Ranges) -> dict[Weight, ShardingStrategy]:
        """Return the strategy of the table if shards get these rows (`axis` 0) or columns (1)."""
        return {self.weight: cut_along(self.axes[axis], ranges)}

    def take_shards(self) -> None:
        """Store the range of rows of a shard; raises `GraphError` if they are not consecutive."""
        parent = self.weight.shard_of
        ranges = [each for cut in self.weight.part or () if not cut.axis for each in cut.ranges]
        if parent is None or not ranges:
            return
        if len(ranges) > 1:
            raise GraphError(
                f"shard {self.weight.shard_idx} has rows of `{parent.name}` that are not "
                "consecutive, so token ids cannot be mapped to them",
                hint="use `ShardingStrategy.rowwise` to split embedding tables",
            )
        self.rows = (*ranges[0], int(parent.original_dtype_and_shape[1][0]))
