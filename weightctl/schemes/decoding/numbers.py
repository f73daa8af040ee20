"""The numbers of a stored tensor, as it has them: plain ones, and those packed in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from weightctl.codecs.scalar import convert, unpack
from weightctl.dtype import DType
from weightctl.schemes.decoding.packing import unpack_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightctl.schemes.decoding.packing import PackingLayout
    from weightctl.schemes.decoding.tables import Region, Table
    from weightctl.weights.derived import ReadableTensor

__all__ = ["NumberTable", "PackedNumbers", "PlainNumbers", "Powers", "Ternary"]


class NumberTable(Protocol):
    """A table of numbers that can be read in rectangles."""

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        """Return a rectangle: float32, or integers of 8 bits."""
        ...


@dataclass(frozen=True, slots=True)
class PlainNumbers:
    """Numbers that are stored one by one, as `dtype`."""

    table: Table
    dtype: DType

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        """Return them: integers of 8 bits as they are, all others as float32."""
        numbers = unpack(self.table.read(inputs, region).view(np.uint8), self.dtype)
        if self.dtype in {DType.int8, DType.uint8}:
            return numbers
        with np.errstate(all="ignore"):
            return convert(numbers, DType.float32)


@dataclass(frozen=True, slots=True)
class Powers:
    """Powers of two, stored as bytes that are their exponents plus `bias`."""

    table: Table
    bias: int = 127

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        """Return the powers; the greatest byte is not a NaN here."""
        exponents = self.table.read(inputs, region).astype(np.int32) - self.bias
        with np.errstate(over="ignore"):
            return np.ldexp(np.float32(1), exponents)


@dataclass(frozen=True, slots=True)
class PackedNumbers:
    """Numbers packed along an axis of a table of words, 0 or 1.

    `plus` is added to each, and what goes beyond their bits is lost. With `signed` the upper half
    is negative.
    """

    table: Table
    layout: PackingLayout
    axis: int
    plus: int = 0
    signed: bool = False

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        """Return them, as uint8, or int8 where they are signed."""
        along = region if self.axis else region.transposed
        numbers, words = self.layout.numbers, self.layout.words
        first = along.left // numbers
        # Of the last repetition there may be fewer words than it would fill.
        beyond = first * words + self.layout.words_of(along.right - first * numbers)
        cut = along._replace(left=first * words, right=beyond)
        stored = self.table.read(inputs, cut if self.axis else cut.transposed)
        levels = unpack_table(stored.view(f"u{stored.itemsize}"), self.layout, self.axis)
        skip, count = along.left - first * numbers, along.right - along.left
        levels = levels[:, skip : skip + count] if self.axis else levels[skip : skip + count]
        mask = np.uint8((1 << self.layout.bits) - 1)
        if self.plus:
            levels = levels + np.uint8(self.plus) & mask
        if self.signed:
            half = 1 << (self.layout.bits - 1)
            return (levels ^ np.uint8(half)).view(np.int8) - np.int8(half)
        return levels


@dataclass(frozen=True, slots=True)
class Ternary:
    """-1, 0 and 1 in two bits, four rows in one: each quarter of the rows has its bits."""

    table: Table
    quarter: int

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> NDArray[Any]:
        """Return them as int8."""
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
