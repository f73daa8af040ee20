"""Codes in a row of bytes, whatever the shape of the weight: bitsandbytes' NF4 and FP4."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from weightctl.schemes.decoding.tables import Region

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.codecs.base import F32
    from weightctl.schemes.decoding.numbers import NumberTable
    from weightctl.schemes.decoding.tables import Table
    from weightctl.weights.derived import ReadableTensor

__all__ = ["CodedRow", "NestedScales"]


@dataclass(frozen=True, slots=True, eq=False)
class NestedScales:
    """Scales that are quantized too: codes into `values`, scales for these, and an offset."""

    values: F32
    scales: NumberTable
    block: int
    offset: float


@dataclass(frozen=True, slots=True, eq=False)
class CodedRow:
    """Codes into `values`, two in a byte, the first above; a scale for each `block` of them.

    Rows of the weight have `columns` elements, and may begin within a byte.
    """

    codes: Table
    values: F32
    scales: NumberTable
    block: int
    columns: int
    nested: NestedScales | None

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> F32:
        """Return a rectangle: whole rows, or a part of one."""
        first = region.top * self.columns + region.left
        last = first + prod(region.shape)
        word = np.dtype(self.codes.word).itemsize
        begin, end = first // (2 * word), -(-last // (2 * word))
        stored = self.codes.read(inputs, Region(0, 1, begin, end)).view(np.uint8)[0]
        codes = np.stack([stored >> np.uint8(4), stored & np.uint8(15)], axis=-1).reshape(-1)
        skip = first - 2 * begin * word
        values = np.empty(last - first, np.float32)
        np.take(self.values, codes[skip : skip + last - first], out=values, mode="clip")
        blocks = np.arange(first, last) // self.block
        with np.errstate(all="ignore"):
            scales = self._scales(inputs, int(blocks[0]), int(blocks[-1]) + 1)
            np.multiply(values, scales[blocks - blocks[0]], out=values)
        return values.reshape(region.shape)

    def _scales(self, inputs: Sequence[ReadableTensor], first: int, last: int) -> F32:
        found = self.scales.read(inputs, Region(0, 1, first, last)).reshape(-1)
        nested = self.nested
        if nested is None:
            plain: F32 = found.astype(np.float32)
            return plain
        blocks = np.arange(first, last) // nested.block
        cells = Region(0, 1, int(blocks[0]), int(blocks[-1]) + 1)
        scales: F32 = nested.scales.read(inputs, cells).reshape(-1).astype(np.float32)
        made = np.empty(last - first, np.float32)
        np.take(nested.values, found, out=made, mode="clip")
        np.multiply(made, scales[blocks - blocks[0]], out=made)
        np.add(made, np.float32(nested.offset), out=made)
        return made
