"""Rectangles of stored tensors, read without the rest of their rows where that is worth it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightctl.weights.derived import ReadableTensor

__all__ = ["Region", "Table"]

# Bytes that are read at a time where rows are read whole for some of their columns.
_BAND = 4 << 20
# A request takes as long as copying this many bytes.
_REQUEST = 8 << 10


class Region(NamedTuple):
    """The cells of a table from row `top` to after the last, `bottom`, and the same of columns."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        return self.bottom - self.top, self.right - self.left

    @property
    def transposed(self) -> Region:
        """The same with rows for columns."""
        return Region(self.left, self.right, self.top, self.bottom)


class Table(NamedTuple):
    """A stored tensor as rows of `columns` words of a NumPy type; `place` is its index."""

    place: int
    columns: int
    word: str

    def read(self, inputs: Sequence[ReadableTensor], region: Region) -> NDArray[Any]:
        """Return a rectangle, of the shape of `region`."""
        tensor, kind = inputs[self.place], np.dtype(self.word)
        rows, width = region.shape
        stride, piece = self.columns * kind.itemsize, width * kind.itemsize
        begin = region.top * stride + region.left * kind.itemsize
        made = np.empty((rows, piece), np.uint8)
        if piece == stride:
            tensor.read_into(begin, made.reshape(-1).data)
        elif stride - piece <= _REQUEST and rows > 1:
            _read_bands(tensor, region.top * stride, stride, begin - region.top * stride, made)
        else:
            for number, row in enumerate(made):
                tensor.read_into(begin + number * stride, row.data)
        return made.view(kind)


def _read_bands(
    tensor: ReadableTensor, begin: int, stride: int, left: int, made: NDArray[np.uint8]
) -> None:
    """Fill `made` with what is at `left` in each row of `stride` bytes, the first at `begin`."""
    rows, piece = made.shape
    step = max(1, _BAND // stride)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        band = np.empty((count, stride), np.uint8)
        tensor.read_into(begin + first * stride, band.reshape(-1).data)
        made[first : first + count] = band[:, left : left + piece]
