"""Quantized weights as ordinary tensors: a run of rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.dtype import ENCODINGS
from weightctl.schemes.decoding.tables import Region

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding
    from weightctl.schemes.decoding.blocks import Blocks
    from weightctl.schemes.decoding.values import WeightValues
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

__all__ = ["Dequantized", "Repacked"]

# Elements that are made at a time. A multiple of all blocks, and of all repetitions of packed bits.
_AREA = 1 << 20
_SQUARE = 128


@dataclass(frozen=True, slots=True, eq=False)
class Dequantized:
    """The values of a weight that is stored in several tensors, float32.

    `shape` is that of the weight. With `transposed` the tables of `values` have the columns of its
    matrices as rows. `label` is what people call the packing.
    """

    label: str
    shape: tuple[int, ...]
    values: WeightValues
    transposed: bool = False

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape, and F32."""
        del inputs
        return self.shape, ENCODINGS["F32"]

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Compute a run."""
        made = np.frombuffer(buffer, np.float32)
        first = start // 4
        for strip in _strips(self.shape, first, first + made.size, transposed=self.transposed):
            values = self.values.read(inputs, strip.region)
            rows = (_transpose(values) if self.transposed else values).reshape(-1)
            own = rows[strip.skip : strip.skip + strip.stop - strip.start]
            made[strip.start - first : strip.stop - first] = own

    def __str__(self) -> str:
        return f"dequantized {self.label}"


@dataclass(frozen=True, slots=True, eq=False)
class Repacked:
    """The same numbers in blocks of ggml, bit for bit; fields are those of `Dequantized`.

    The shape has rows of whole blocks.
    """

    label: str
    shape: tuple[int, ...]
    blocks: Blocks
    transposed: bool = False

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape, and the encoding of the blocks."""
        del inputs
        return self.shape, self.blocks.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Pack a run of blocks."""
        block, size = self.blocks.encoding.block, self.blocks.encoding.size
        made: U8 = np.frombuffer(buffer, np.uint8)
        first = start // size * block
        last = first + made.size // size * block
        for strip in _strips(self.shape, first, last, transposed=self.transposed):
            packed = self.blocks.read(inputs, strip.region, transposed=self.transposed).reshape(-1)
            begin, end = ((at - first) // block * size for at in (strip.start, strip.stop))
            skip = strip.skip // block * size
            made[begin:end] = packed[skip : skip + end - begin]

    def __str__(self) -> str:
        return f"{self.label} repacked as {self.blocks.encoding.name}"


def _transpose(values: F32) -> F32:
    """Return a table with its rows as columns, a few at a time: caches have it in squares."""
    made = np.empty(values.shape[::-1], np.float32)
    for first in range(0, len(values), _SQUARE):
        made[:, first : first + _SQUARE] = values[first : first + _SQUARE].T
    return made


class _Strip(NamedTuple):
    """Elements of a weight from `start` to `stop`, and the region of its table that has them.

    Laid out as rows of the weight, the region has `skip` elements before them.
    """

    region: Region
    start: int
    stop: int
    skip: int


def _strips(shape: tuple[int, ...], start: int, stop: int, *, transposed: bool) -> Iterator[_Strip]:
    """Cut a run of elements: into whole rows, or, where rows are very long, into pieces of one."""
    columns = shape[-1] if shape else 1
    # Of a transposed matrix no strip has rows of two.
    height = shape[-2] if transposed and len(shape) > 1 else prod(shape[:-1])
    most = max(1, _AREA // columns)
    width = min(columns, _AREA)
    while start < stop:
        row, column = divmod(start, columns)
        matrix, top = divmod(row, height)
        if width == columns:
            count = min(most, height - top, -(-(stop - row * columns) // columns))
            left, right = 0, columns
        else:
            count, left = 1, column // width * width
            right = min(left + width, columns)
        end = min(stop, (row + count - 1) * columns + right)
        region = Region(row, row + count, left, right)
        if transposed:
            before = matrix * columns
            region = Region(before + left, before + right, top, top + count)
        yield _Strip(region, start, end, start - row * columns - left)
        start = end
