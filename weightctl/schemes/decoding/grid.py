"""Tables of scales whose cells are for blocks of another table."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from weightctl.errors import ConversionError
from weightctl.schemes.decoding.tables import Region

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightctl.schemes.decoding.numbers import NumberTable
    from weightctl.weights.derived import ReadableTensor

__all__ = ["BlockGrid", "Order", "PerBlock"]


@dataclass(frozen=True, slots=True)
class Order:
    """A stored tensor that says of each index of an axis (0 or 1) in which of `groups` it is."""

    place: int
    axis: int
    groups: int

    def read(self, inputs: Sequence[ReadableTensor], first: int, last: int) -> NDArray[np.int64]:
        """Return the groups of a range of indices; raises `ConversionError` if one is invalid."""
        tensor = inputs[self.place]
        size = tensor.info.encoding.size
        raw = np.empty((last - first) * size, np.uint8)
        tensor.read_into(first * size, raw.data)
        groups: NDArray[np.int64] = raw.view(f"i{size}").astype(np.int64)
        if groups.size and (groups.min() < 0 or groups.max() >= self.groups):
            wrong = groups[(groups < 0) | (groups >= self.groups)][0]
            raise ConversionError(
                f"`{tensor.info.name}` has the group index {wrong}, but there are "
                f"{self.groups} groups",
                hint="the checkpoint is damaged",
            )
        return groups


@dataclass(frozen=True, slots=True)
class BlockGrid:
    """Blocks of `blocks` elements in each dimension of `shape`, the last ones perhaps cut off.

    There are `counts` of them. A table has the last dimension as its columns, and all before it as
    its rows. `order` says where those are of an axis, if it is not by their place.
    """

    shape: tuple[int, ...]
    counts: tuple[int, ...]
    blocks: tuple[int, ...]
    order: Order | None = None

    @property
    def table(self) -> tuple[int, int]:
        """The rows and columns of the table that has a cell for each block."""
        return prod(self.counts[:-1]), self.counts[-1]

    def rows(self, inputs: Sequence[ReadableTensor], top: int, bottom: int) -> NDArray[np.int64]:
        """Return the row of the table of blocks for each of some rows."""
        if self.order is not None and self.order.axis == 0:
            return self.order.read(inputs, top, bottom)
        made = np.zeros(bottom - top, np.int64)
        rest = np.arange(top, bottom, dtype=np.int64)
        step = 1
        dimensions = zip(self.shape[:-1], self.counts[:-1], self.blocks[:-1], strict=True)
        for length, count, block in reversed(list(dimensions)):
            rest, place = np.divmod(rest, length)
            made += place // block * step
            step *= count
        return made

    def columns(self, inputs: Sequence[ReadableTensor], left: int, right: int) -> NDArray[np.int64]:
        """Return the column of the table of blocks for each of some columns."""
        if self.order is not None and self.order.axis == 1:
            return self.order.read(inputs, left, right)
        return np.arange(left, right, dtype=np.int64) // self.blocks[-1]


@dataclass(frozen=True, slots=True)
class PerBlock:
    """A number for each block of a grid."""

    numbers: NumberTable
    grid: BlockGrid

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        """Return the numbers for a rectangle: one row or column where all are alike."""
        rows = _alike(self.grid.rows(inputs, region.top, region.bottom))
        columns = _alike(self.grid.columns(inputs, region.left, region.right))
        top, left = int(rows.min()), int(columns.min())
        cells = Region(top, int(rows.max()) + 1, left, int(columns.max()) + 1)
        found = self.numbers.read(inputs, cells)
        # Without copying where each is there once, in order.
        if not np.array_equal(columns, np.arange(cells.left, cells.right)):
            found = found[:, columns - left]
        if not np.array_equal(rows, np.arange(cells.top, cells.bottom)):
            found = found[rows - top]
        return found


def _alike(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    return indices[:1] if indices.size and bool((indices == indices[0]).all()) else indices
