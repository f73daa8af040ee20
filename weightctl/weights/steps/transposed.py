"""Matrices that are transposed, or whose columns are in another order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

# If at least 1/8 of each row is needed, reading whole rows is faster than reading the parts.
_SHARE = 8
# The most bytes of rows that are read at a time.
_BAND = 4 << 20


@dataclass(frozen=True, slots=True)
class Transposed:
    """A transposed matrix; not for block encodings, whose blocks are along rows."""

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        (info,) = inputs
        if len(info.shape) != 2 or info.encoding.block != 1:
            raise ConversionError(
                f"`{info.name}`, stored as {info.encoding} of shape {list(info.shape)}, "
                "cannot be transposed"
            )
        return info.shape[::-1], info.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Read the part of each row with the requested columns, and transpose it."""
        import numpy as np

        (tensor,) = inputs
        rows, columns = tensor.info.shape
        width = tensor.info.encoding.size
        first, last = start // (rows * width), -(-(start + len(buffer)) // (rows * width))
        turned = np.empty((last - first, rows, width), np.uint8)
        if (last - first) * _SHARE >= columns:
            step = max(1, _BAND // (columns * width))
            for top in range(0, rows, step):
                count = min(step, rows - top)
                band = bytearray(count * columns * width)
                tensor.read_into(top * columns * width, memoryview(band))
                whole = np.frombuffer(band, np.uint8).reshape(count, columns, width)
                turned[:, top : top + count] = whole[:, first:last].swapaxes(0, 1)
        else:
            part = bytearray((last - first) * width)
            for row in range(rows):
                tensor.read_into((row * columns + first) * width, memoryview(part))
                turned[:, row] = np.frombuffer(part, np.uint8).reshape(-1, width)
        begin = start - first * rows * width
        flat = turned.reshape(-1)
        np.frombuffer(buffer, np.uint8)[:] = flat[begin : begin + len(buffer)]

    def __str__(self) -> str:
        return "transposed"


@dataclass(frozen=True, slots=True)
class ColumnOrder:
    """Columns in another order: column i of the result is column `order[i]` of the input.

    Not for block encodings, whose blocks are along rows.
    """

    order: tuple[int, ...]
    text: str = field(default="columns in another order", compare=False)

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the same shape and encoding."""
        (info,) = inputs
        if len(info.shape) != 2 or info.shape[1] != len(self.order) or info.encoding.block != 1:
            raise ConversionError(
                f"`{info.name}`, stored as {info.encoding}, has shape {list(info.shape)}, but a "
                f"matrix with {len(self.order)} columns is expected",
                hint="check that the config belongs to this checkpoint",
            )
        return info.shape, info.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Read the rows that the range is in, and select their columns."""
        import numpy as np

        (tensor,) = inputs
        width = tensor.info.encoding.size
        row = len(self.order) * width
        first, last = start // row, -(-(start + len(buffer)) // row)
        whole = bytearray((last - first) * row)
        tensor.read_into(first * row, memoryview(whole))
        values = np.frombuffer(whole, np.uint8).reshape(last - first, -1, width)
        picked = values[:, np.asarray(self.order)].reshape(-1)
        begin = start - first * row
        np.frombuffer(buffer, np.uint8)[:] = picked[begin : begin + len(buffer)]

    def __str__(self) -> str:
        return self.text
