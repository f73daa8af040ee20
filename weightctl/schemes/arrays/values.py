"""Values of quantized weights: scaled integers, codes in a row of bytes, scales of whole weights.

NVFP4 has a scale for the whole weight: compressed-tensors divides the scales of blocks by it,
ModelOpt multiplies them by it. llama.cpp multiplies the values of ggml's blocks (the products with
these) by a tensor `NAME.scale`. Each of these rounds in float32 at another place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from weightctl.codecs.scalar import convert, unpack
from weightctl.dtype import DType
from weightctl.schemes.arrays.rounding import E2M1
from weightctl.schemes.arrays.tables import Region

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding
    from weightctl.schemes.arrays.tables import NumberTable, PerBlock
    from weightctl.weights.derived import ReadableTensor

# The number of elements that fit into the processor's cache for all steps.
_BAND = 1 << 16
# All scales of blocks that are numbers, and the magnitudes of all codes.
_SCALES = np.arange(0x7F, dtype=np.uint8)
_MAGNITUDES = np.array(E2M1[:8], np.float32)


class WeightValues(Protocol):
    """A table of a weight's values that can be read in rectangles."""

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> F32:
        """Return a rectangle."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """The values (q - zero) * scale of stored integers or codes q, in float32, in this order.

    `zero` is added to each of the `zeros`, if they are given. If `codes` are given, q is an index
    of `codes`. The scale of a block is multiplied by that of a larger block, `above`, or divided by
    it if `is_divided`. `biases` are then added, and the result is multiplied by `factors` and
    `factor`. With `inverse`, q - zero is divided by the scale.
    """

    numbers: NumberTable
    scales: PerBlock
    zero: int = 0
    zeros: PerBlock | None = None
    codes: tuple[float, ...] = ()
    above: PerBlock | None = None
    is_divided: bool = False
    biases: PerBlock | None = None
    factor: float = 1.0
    factors: PerBlock | None = None
    inverse: bool = False

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> F32:
        """Return a rectangle of the weight."""
        levels = self.numbers.read(inputs, region)
        made = np.empty(region.shape, np.float32)
        step = max(1, _BAND // max(1, region.shape[1]))
        # Scales of damaged files can be any floats, so NaN and infinities are possible results.
        with np.errstate(all="ignore"):
            for first in range(0, len(made), step):
                top = region.top + first
                band = region._replace(top=top, bottom=min(top + step, region.bottom))
                rows = slice(first, first + step)
                self._fill(made[rows], levels[rows], inputs, band)
        return made

    def _fill(
        self, made: F32, levels: NDArray[Any], inputs: Sequence[ReadableTensor], region: Region
    ) -> None:
        """Compute a rectangle from its stored values."""
        if self.codes:
            np.take(np.array(self.codes, np.float32), levels, out=made, mode="clip")
        else:
            np.copyto(made, levels)
        if self.zeros is not None or self.zero:
            made -= self.zeros_of(inputs, region)
        if self.inverse:
            made /= self.scales_of(inputs, region)
        else:
            made *= self.scales_of(inputs, region)
        if self.biases is not None:
            made += self.biases.read(inputs, region)
        if self.factors is not None:
            made *= self.factors.read(inputs, region)
        if self.factor != 1.0:
            made *= np.float32(self.factor)

    def zeros_of(self, inputs: Sequence[ReadableTensor], region: Region) -> F32:
        """Return the zero points of a rectangle, in a shape that broadcasts."""
        zero = np.full((1, 1), self.zero, np.float32)
        if self.zeros is None:
            return zero
        return self.zeros.read(inputs, region).astype(np.float32) + zero

    def scales_of(self, inputs: Sequence[ReadableTensor], region: Region) -> F32:
        """Return the scales of a rectangle, in a shape that broadcasts."""
        scales = self.scales.read(inputs, region).astype(np.float32)
        if self.above is None:
            return scales
        with np.errstate(all="ignore"):
            above = self.above.read(inputs, region).astype(np.float32)
            return scales / above if self.is_divided else scales * above


@dataclass(frozen=True, slots=True, eq=False)
class NestedScales:
    """Scales that are quantized too: codes into `values`, the scales of these, and an offset."""

    values: F32
    scales: NumberTable
    block: int
    offset: float


@dataclass(frozen=True, slots=True, eq=False)
class CodedRow:
    """A row of codes into `values`; each `block` of codes has a scale.

    Rows of the weight have `columns` elements, and can begin within a byte.
    """

    codes: NumberTable
    values: F32
    scales: NumberTable
    block: int
    columns: int
    nested: NestedScales | None

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /) -> F32:
        """Return a rectangle, which must be whole rows or a part of one row."""
        first = region.top * self.columns + region.left
        last = first + prod(region.shape)
        codes = self.codes.read(inputs, Region(0, 1, first, last))[0]
        values = np.empty(last - first, np.float32)
        np.take(self.values, codes, out=values, mode="clip")
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


class Blocks(Protocol):
    """A weight that can be read as blocks, in rectangles."""

    @property
    def encoding(self) -> Encoding:
        """The encoding of the blocks."""
        ...

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /, *, transposed: bool) -> U8:
        """Return a rectangle as rows of bytes; with `transposed` its columns become the rows."""
        ...


class ScaleUse(Enum):
    """What a scale of a whole weight does: to the scales of its blocks, or to its values."""

    DIVIDES = "divides the scales of blocks"
    MULTIPLIES = "multiplies the scales of blocks"
    MULTIPLIES_VALUES = "multiplies values"


class WholeScale(NamedTuple):
    """The scale of a whole weight, or of each of its matrices, shape (n,), and its use."""

    values: F32
    use: ScaleUse

    def is_usable(self) -> bool:
        """Whether all scales are positive numbers, whose inverses are too."""
        with np.errstate(all="ignore"):
            inverse = np.float32(1) / self.values
        return bool((np.isfinite(inverse) & (inverse > 0) & (self.values > 0)).all())

    def is_one(self) -> bool:
        return bool((self.values == 1).all())

    def put_to(self, use: ScaleUse) -> tuple[WholeScale, bool]:
        """Return the scale for another use, and whether all values stay the same, bit for bit."""
        values = self.values
        if use is self.use:
            return self, True
        if ScaleUse.DIVIDES in {use, self.use}:
            values = (np.float32(1) / values).astype(np.float32)
        made = WholeScale(values, use)
        return made, bool(np.array_equal(self._restore_all(), made._restore_all()))

    def _restore_all(self) -> F32:
        """Return the values of all codes at all scales of blocks, for each scale of a matrix."""
        scales: F32 = convert(unpack(_SCALES, DType.float8_e4m3fn), DType.float32)
        scales, whole = scales[None, :, None], self.values[:, None, None]
        with np.errstate(all="ignore"):
            if self.use is ScaleUse.MULTIPLIES_VALUES:
                return scales * _MAGNITUDES * whole
            made = scales / whole if self.use is ScaleUse.DIVIDES else scales * whole
            return made * _MAGNITUDES


class Decoding(NamedTuple):
    """How a weight is computed from its tensors.

    `shape` is that of the weight, whose `values` are one matrix or several; with `transposed`,
    their columns are the rows of the weight. `bits` is the width of the stored integers and
    `middle` the zero point of a symmetric range; `bits` is 0 if they do not fit blocks of ggml.
    `microscaled` is the weight as MXFP4 or NVFP4, with rows as they are stored, if that is
    possible. `whole` is the scale of the whole weight, or of each of its matrices, which ggml's
    blocks of NVFP4 lack.
    """

    shape: tuple[int, ...]
    values: WeightValues
    transposed: bool = False
    bits: int = 0
    middle: int = 0
    microscaled: Blocks | None = None
    whole: WholeScale | None = None
