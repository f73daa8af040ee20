"""Tables of values in stored tensors: plain values, packed values, and one value per block."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from weightctl.codecs import transcode
from weightctl.codecs.scalar import convert, unpack
from weightctl.dtype import ENCODINGS, DType
from weightctl.errors import ConversionError
from weightctl.schemes.arrays.packing import unpack_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightctl.schemes.layout import Packing
    from weightctl.weights.derived import ReadableTensor

# The number of bytes that are read at a time, if whole rows are read for some of their columns.
_BAND = 4 << 20
# A read takes as long as copying this many bytes.
_REQUEST = 8 << 10


class Region(NamedTuple):
    """A rectangle of a table: rows `top` to `bottom`, columns `left` to `right`, ends excluded."""

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
        """The rectangle with rows and columns exchanged."""
        return Region(self.left, self.right, self.top, self.bottom)


class Table(NamedTuple):
    """A stored tensor as rows of `columns` words of a NumPy type; `place` is its index."""

    place: int
    columns: int
    word: str

    def read(self, inputs: Sequence[ReadableTensor], region: Region) -> NDArray[Any]:
        """Return a rectangle, with the shape of `region`."""
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
    """Fill `made` with a part of each row of `stride` bytes; the first row is at byte `begin`.

    The part starts at byte `left` of its row.
    """
    rows, piece = made.shape
    step = max(1, _BAND // stride)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        band = np.empty((count, stride), np.uint8)
        tensor.read_into(begin + first * stride, band.reshape(-1).data)
        made[first : first + count] = band[:, left : left + piece]


class NumberTable(Protocol):
    """A table of values that can be read in rectangles."""

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        """Return a rectangle: float32, or integers of 8 bits."""
        ...


@dataclass(frozen=True, slots=True)
class PlainNumbers:
    """Values that are stored separately, as `dtype`."""

    table: Table
    dtype: DType

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        """Return a rectangle: 8-bit integers as they are, other types as float32."""
        numbers = unpack(self.table.read(inputs, region).view(np.uint8), self.dtype)
        if self.dtype in {DType.int8, DType.uint8}:
            return numbers
        with np.errstate(all="ignore"):
            return convert(numbers, DType.float32)


@dataclass(frozen=True, slots=True)
class Powers:
    """Powers of two, stored as bytes: the exponent plus `bias`."""

    table: Table
    bias: int = 127

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        """Return a rectangle; the largest byte is not NaN here."""
        exponents = self.table.read(inputs, region).astype(np.int32) - self.bias
        with np.errstate(over="ignore"):
            return np.ldexp(np.float32(1), exponents)


@dataclass(frozen=True, slots=True)
class PackedNumbers:
    """Values that are packed in a table of words.

    `plus` is added to each value, modulo 2^bits. With `signed`, the upper half of the range is
    negative.
    """

    table: Table
    packing: Packing
    plus: int = 0
    signed: bool = False

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        """Return a rectangle as uint8, or as int8 for signed values."""
        packing, axis = self.packing, self.packing.axis
        along = region if axis else region.transposed
        first = along.left // packing.numbers
        skip, count = along.left - first * packing.numbers, along.right - along.left
        # The last repetition can have fewer words than a full one.
        beyond = first * packing.words + packing.words_of(skip + count)
        cut = along._replace(left=first * packing.words, right=beyond)
        stored = self.table.read(inputs, cut if axis else cut.transposed)
        levels = unpack_table(stored.view(f"u{stored.itemsize}"), packing)
        levels = levels[:, skip : skip + count] if axis else levels[skip : skip + count]
        if self.plus:
            levels = levels + np.uint8(self.plus) & np.uint8((1 << packing.bits) - 1)
        if self.signed:
            half = 1 << (packing.bits - 1)
            return (levels ^ np.uint8(half)).view(np.int8) - np.int8(half)
        return levels


@dataclass(frozen=True, slots=True)
class SymmetricZeros:
    """Zero points of a symmetric range: all are `middle`, which some tools store minus one.

    Engines do not read them.
    """

    stored: PackedNumbers
    middle: int

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        """Return a rectangle; raises `ConversionError` if another zero point is stored."""
        found = self.stored.read(inputs, region)
        wrong = found[(found != self.middle) & (found != self.middle - 1)]
        if wrong.size:
            raise ConversionError(
                f"`{inputs[self.stored.table.place].info.name}` stores the zero point {wrong[0]}, "
                f"but the config states a symmetric range, whose zero point is {self.middle}",
                hint="use the unquantized model as input",
            )
        return np.full_like(found, self.middle)


@dataclass(frozen=True, slots=True)
class BlockNumbers:
    """Values in ggml's blocks, in rows of `columns` values; `place` is the index of the tensor."""

    place: int
    columns: int

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        encoding = inputs[self.place].info.encoding
        block, size = encoding.block, encoding.size
        first, last = region.left // block, -(-region.right // block)
        table = Table(self.place, self.columns // block * size, "u1")
        raw = table.read(inputs, region._replace(left=first * size, right=last * size))
        values = transcode(raw, encoding, ENCODINGS["F32"]).raw.view(np.float32)
        return values[:, region.left - first * block : region.right - first * block]


@dataclass(frozen=True, slots=True)
class Ternary:
    """Values -1, 0 and 1 in two bits each; the four quarters of the rows share their bytes."""

    table: Table
    quarter: int

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        made = np.empty(region.shape, np.int8)
        top = region.top
        while top < region.bottom:
            quarter, row = divmod(top, self.quarter)
            count = min(region.bottom - top, self.quarter - row)
            stored = self.table.read(inputs, region._replace(top=row, bottom=row + count))
            levels = stored >> np.uint8(2 * quarter) & np.uint8(3)
            made[top - region.top : top - region.top + count] = levels.astype(np.int8) - np.int8(1)
            top += count
        return made


@dataclass(frozen=True, slots=True)
class Order:
    """A stored tensor with the group of each index of an axis (0 or 1), one of `groups` groups."""

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
    """A grid of blocks over a weight: sizes in `blocks`, counts in `counts` for each dimension.

    The last blocks of a dimension can be incomplete. In tables, the last dimension is the columns,
    and the other dimensions together are the rows. If `order` is given, it assigns the indices of
    an axis to blocks, instead of their position.
    """

    shape: tuple[int, ...]
    counts: tuple[int, ...]
    blocks: tuple[int, ...]
    order: Order | None = None

    @property
    def table(self) -> tuple[int, int]:
        """The shape of the table with a cell for each block: rows, columns."""
        return prod(self.counts[:-1]), self.counts[-1]

    def rows(self, inputs: Sequence[ReadableTensor], top: int, bottom: int) -> NDArray[np.int64]:
        """Return the table's row for each row of the weight from `top` to `bottom`."""
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
        """Return the table's column for each column of the weight from `left` to `right`."""
        if self.order is not None and self.order.axis == 1:
            return self.order.read(inputs, left, right)
        return np.arange(left, right, dtype=np.int64) // self.blocks[-1]


@dataclass(frozen=True, slots=True)
class PerBlock:
    """One value for each block of a grid."""

    numbers: NumberTable
    grid: BlockGrid

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        """Return the values for a rectangle of the weight; one row or column if all are equal."""
        rows = _alike(self.grid.rows(inputs, region.top, region.bottom))
        columns = _alike(self.grid.columns(inputs, region.left, region.right))
        top, left = int(rows.min()), int(columns.min())
        cells = Region(top, int(rows.max()) + 1, left, int(columns.max()) + 1)
        found = self.numbers.read(inputs, cells)
        # No copy is needed if the rectangle has each cell once, in order.
        if not np.array_equal(columns, np.arange(cells.left, cells.right)):
            found = found[:, columns - left]
        if not np.array_equal(rows, np.arange(cells.top, cells.bottom)):
            found = found[rows - top]
        return found


def _alike(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    return indices[:1] if indices.size and bool((indices == indices[0]).all()) else indices
