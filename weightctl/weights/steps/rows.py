"""Steps that reorder or select whole rows; the bytes of rows are not changed.

In this module, a row is everything at one index of the first dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

# If the range that contains the needed rows has more bytes than this, rows can be read one by one.
_MOST_BETWEEN = 1 << 26


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Rows in another order: row i of the result is row `order[i]` of the input.

    `rows` is the number of rows of the input if the order has only some of them. Nearby rows should
    come from nearby rows: the rows between them are also read, up to a limit.
    """

    order: tuple[int, ...]
    text: str = field(default="rows in another order", compare=False)
    rows: int | None = None

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape with as many rows as the order has, and the encoding of the input."""
        (info,) = inputs
        rows = len(self.order) if self.rows is None else self.rows
        if not info.shape or info.shape[0] != rows:
            raise ConversionError(
                f"`{info.name}` has shape {list(info.shape)}, but {rows} rows are expected",
                hint="check that the config belongs to this checkpoint",
            )
        return (len(self.order), *info.shape[1:]), info.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Read the range that contains the rows and select them; far apart rows are read singly."""
        import numpy as np

        (tensor,) = inputs
        row = _row_bytes(tensor.info)
        first, last = start // row, -(-(start + len(buffer)) // row)
        wanted = self.order[first:last]
        lowest, highest = min(wanted), max(wanted)
        if (highest - lowest + 1) * row > max(_MOST_BETWEEN, 2 * len(wanted) * row):
            apart = np.empty((len(wanted), row), np.uint8)
            for place, number in enumerate(wanted):
                tensor.read_into(number * row, memoryview(apart[place]))
            picked = apart.reshape(-1)
        else:
            near = bytearray((highest - lowest + 1) * row)
            tensor.read_into(lowest * row, memoryview(near))
            rows = np.frombuffer(near, np.uint8).reshape(-1, row)
            picked = rows[np.asarray(wanted) - lowest].reshape(-1)
        begin = start - first * row
        np.frombuffer(buffer, np.uint8)[:] = picked[begin : begin + len(buffer)]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class RowRange:
    """The rows from `start` to `stop`, without `stop` itself."""

    start: int
    stop: int

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape with fewer rows."""
        (info,) = inputs
        if not info.shape or not 0 <= self.start <= self.stop <= info.shape[0]:
            raise ConversionError(
                f"`{info.name}` has shape {list(info.shape)}: rows {self.start} to "
                f"{self.stop} do not exist",
                hint="check that the config belongs to this checkpoint",
            )
        return (self.stop - self.start, *info.shape[1:]), info.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        (tensor,) = inputs
        tensor.read_into(self.start * _row_bytes(tensor.info) + start, buffer)

    def __str__(self) -> str:
        return f"rows {self.start} to {self.stop}"


@dataclass(frozen=True, slots=True)
class RowsFrom:
    """All rows but the first `start`."""

    start: int

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape with fewer rows."""
        (info,) = inputs
        return RowRange(self.start, info.shape[0] if info.shape else 0).infer(inputs)

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        (tensor,) = inputs
        tensor.read_into(self.start * _row_bytes(tensor.info) + start, buffer)

    def __str__(self) -> str:
        return f"without the first {self.start} rows"


@dataclass(frozen=True, slots=True)
class ZerosBefore:
    """The rows after `count` rows whose bytes are zeros."""

    count: int

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape with more rows."""
        (info,) = inputs
        if not info.shape or info.encoding.block > 1:
            raise ConversionError(
                f"`{info.name}`, stored as {info.encoding} of shape {list(info.shape)}, cannot "
                "have rows of zeros"
            )
        return (info.shape[0] + self.count, *info.shape[1:]), info.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Read what is after the zeros."""
        (tensor,) = inputs
        zeros = max(0, self.count * _row_bytes(tensor.info) - start)
        made = min(zeros, len(buffer))
        buffer[:made] = bytes(made)
        if made < len(buffer):
            behind = start + made - self.count * _row_bytes(tensor.info)
            tensor.read_into(behind, buffer[made:])

    def __str__(self) -> str:
        return f"{self.count} rows of zeros before the others"


@dataclass(frozen=True, slots=True)
class FirstRowAfter:
    """The rows, and after them `count` copies of the first one."""

    count: int

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape with more rows."""
        (info,) = inputs
        if not info.shape or not info.shape[0]:
            raise ConversionError(f"`{info.name}` of shape {list(info.shape)} has no first row")
        return (info.shape[0] + self.count, *info.shape[1:]), info.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Read the rows, then the first one as often as it follows."""
        (tensor,) = inputs
        size, row = tensor.info.nbytes, _row_bytes(tensor.info)
        done = min(max(0, size - start), len(buffer))
        if done:
            tensor.read_into(start, buffer[:done])
        while done < len(buffer):
            first = (start + done - size) % row
            count = min(row - first, len(buffer) - done)
            tensor.read_into(first, buffer[done : done + count])
            done += count

    def __str__(self) -> str:
        return f"{self.count} copies of the first row after the others"


@dataclass(frozen=True, slots=True)
class StackedEntry:
    """One of the tensors that are stacked along the first dimension."""

    index: int

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape without the first dimension."""
        (info,) = inputs
        if len(info.shape) < 2 or not 0 <= self.index < info.shape[0]:
            raise ConversionError(
                f"`{info.name}` has shape {list(info.shape)}: entry {self.index} does not exist",
                hint="check that the config belongs to this checkpoint",
            )
        return info.shape[1:], info.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        (tensor,) = inputs
        tensor.read_into(self.index * _row_bytes(tensor.info) + start, buffer)

    def __str__(self) -> str:
        return "one entry of a stack"


def _row_bytes(info: TensorInfo) -> int:
    return info.nbytes // info.shape[0] or 1
