"""Repacking of integers and scales as ggml's blocks of 32, which hold the same values exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from weightctl.codecs.affine import Q4_1
from weightctl.codecs.e2m1 import MXFP4, NVFP4
from weightctl.codecs.nibbles import pack_pairs
from weightctl.codecs.q8_0 import Q8_0
from weightctl.codecs.symmetric import Q4_0
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.schemes.decoding.tables import Region

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import U8
    from weightctl.dtype import Encoding
    from weightctl.schemes.decoding.tables import NumberTable, PerBlock
    from weightctl.schemes.decoding.values import Scaled
    from weightctl.weights.derived import ReadableTensor

_GROUP = 32
# The largest E4M3 without a sign is NaN.
_NAN = 0x7F
# The number of cells of a table of scales that are checked at a time.
_CELLS = 1 << 20
# The encoding with a symmetric range, by the bit width.
_SYMMETRIC = {4: "Q4_0", 8: "Q8_0"}
_BLOCKS = {"Q4_0": Q4_0.block_dtype, "Q4_1": Q4_1.block_dtype, "Q8_0": Q8_0.block_dtype}


class Blocks(Protocol):
    """A weight that can be read as blocks, in rectangles."""

    @property
    def encoding(self) -> Encoding:
        """The encoding of the blocks."""
        ...

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /, *, transposed: bool) -> U8:
        """Return a rectangle as rows of bytes; with `transposed` its columns become the rows."""
        ...


@dataclass(frozen=True, slots=True)
class Integers:
    """Integers and their scales as Q4_0, Q4_1 or Q8_0, as chosen by `block_encoding`."""

    values: Scaled
    encoding: Encoding

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /, *, transposed: bool) -> U8:
        """Return a rectangle as rows of bytes."""
        levels = _group_rows(self.values.numbers.read(inputs, region), transposed=transposed)
        if levels.dtype == np.int8 and self.encoding.name != "Q8_0":
            levels = levels.view(np.uint8) + np.uint8(8)
        elif levels.dtype == np.uint8 and self.encoding.name == "Q8_0":
            levels ^= np.uint8(128)
            levels = levels.view(np.int8)
        made = np.empty(levels.shape[:2], _BLOCKS[self.encoding.name])
        # All 32 columns of a block have the same scale, so the first one is read.
        first = _firsts(region, transposed=transposed)
        with np.errstate(all="ignore"):
            scales = self.values.scales_of(inputs, region)
            made["scale"] = _sample_scales(scales, region, first, transposed=transposed)
            if self.encoding.name == "Q8_0":
                made["q"] = levels
                return made.view(np.uint8)
            if self.encoding.name == "Q4_1":
                mins = self._mins(inputs, region, scales)
                made["min"] = _sample_scales(mins, region, first, transposed=transposed)
        made["low"] = levels[..., :16] | levels[..., 16:] << np.uint8(4)
        return made.view(np.uint8)

    def _mins(
        self, inputs: Sequence[ReadableTensor], region: Region, scales: NDArray[np.float32]
    ) -> NDArray[Any]:
        if self.values.biases is not None:
            return self.values.biases.read(inputs, region)
        # The minimum of a zero point of 0 is 0, not -0.
        return 0 - scales * self.values.zeros_of(inputs, region)


@dataclass(frozen=True, slots=True)
class Microscaled:
    """4-bit floats and their scales as MXFP4; `exponents` are the bytes of powers of two."""

    codes: NumberTable
    exponents: PerBlock
    has_nan: bool

    @property
    def encoding(self) -> Encoding:
        """MXFP4."""
        return ENCODINGS["MXFP4"]

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /, *, transposed: bool) -> U8:
        """Return a rectangle; raises `ConversionError` for NaN, which MXFP4 cannot store."""
        codes = _group_rows(self.codes.read(inputs, region), transposed=transposed)
        made = np.empty(codes.shape[:2], MXFP4.block_dtype)
        exponents = self.exponents.read(inputs, region)
        if self.has_nan and bool((exponents == 255).any()):
            raise ConversionError(
                f"a scale of `{inputs[0].info.name}` is NaN, which MXFP4 cannot hold",
                hint="the checkpoint is damaged",
            )
        first = _firsts(region, transposed=transposed)
        made["exponent"] = _sample_scales(exponents, region, first, transposed=transposed)
        made["q"] = pack_pairs(codes)
        return made.view(np.uint8)


@dataclass(frozen=True, slots=True)
class NvidiaMicroscaled:
    """4-bit floats and their scales as NVFP4; `scales` are the bytes of E4M3."""

    codes: NumberTable
    scales: PerBlock

    @property
    def encoding(self) -> Encoding:
        """NVFP4."""
        return ENCODINGS["NVFP4"]

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /, *, transposed: bool) -> U8:
        """Return a rectangle; raises `ConversionError` for scales that NVFP4 cannot store."""
        codes = _group_rows(self.codes.read(inputs, region), transposed=transposed, group=64)
        scales = self.scales.read(inputs, region)
        if bool((scales >= _NAN).any()):
            raise ConversionError(
                f"a scale of `{inputs[0].info.name}` is NaN or negative, which NVFP4 cannot hold",
                hint="the checkpoint is damaged",
            )
        made = np.empty(codes.shape[:2], NVFP4.block_dtype)
        first = _firsts(region, transposed=transposed, group=16)
        each = _sample_scales(scales, region, first, transposed=transposed)
        made["scales"] = each.reshape(made["scales"].shape)
        made["q"] = pack_pairs(codes.reshape(*codes.shape[:2], 4, 16))
        return made.view(np.uint8)


def _group_rows(levels: NDArray[Any], *, transposed: bool, group: int = _GROUP) -> NDArray[Any]:
    """Return the values as an array of shape (rows of the weight, blocks, values of a block)."""
    rows = np.ascontiguousarray(levels.T if transposed else levels)
    return rows.reshape(len(rows), -1, group)


def _firsts(region: Region, *, transposed: bool, group: int = _GROUP) -> slice:
    """Return the slice of the weight's columns that are the first of a group."""
    return slice(0, region.shape[0 if transposed else 1], group)


def _sample_scales(
    scales: NDArray[Any], region: Region, first: slice, *, transposed: bool
) -> NDArray[Any]:
    """Return one scale for each block, from the scales of all values of a region."""
    each = np.broadcast_to(scales, region.shape)
    return (each.T if transposed else each)[:, first]


def block_encoding(
    values: Scaled,
    bits: int,
    inputs: Sequence[ReadableTensor],
    *,
    middle: int,
    are_half: bool,
    may_read: bool,
) -> Encoding | None:
    """Return the encoding whose blocks hold a weight's values exactly; None if there is none.

    `bits` is the width of the stored integers, and `middle` the zero point of a symmetric range.
    All scales and zero points are read, unless `are_half`: then the scales and biases are stored as
    float16, and there are no zero points. Biases are compared with scales only with `may_read`.
    """
    symmetric = _SYMMETRIC.get(bits)
    if values.zeros is not None:
        return _of_zeros(values, bits, inputs, middle)
    if values.biases is not None:
        if not (
            are_half or (_are_half(values.scales, inputs) and _are_half(values.biases, inputs))
        ):
            return None
        if symmetric and may_read and _are_symmetric(values, values.biases, bits, inputs):
            return ENCODINGS[symmetric]
        return ENCODINGS["Q4_1"] if bits == 4 else None
    if symmetric is None or values.zero != middle:
        return None
    return ENCODINGS[symmetric] if are_half or _are_half(values.scales, inputs) else None


def _are_symmetric(
    values: Scaled, biases: PerBlock, bits: int, inputs: Sequence[ReadableTensor]
) -> bool:
    """Whether the middle integer of each group is 0; all values are then exact in float32."""
    middle = np.float32(-(1 << (bits - 1)))
    for cells in _pieces(values.scales.grid.table):
        scale = values.scales.numbers.read(inputs, cells).astype(np.float32)
        bias = biases.numbers.read(inputs, cells).astype(np.float32)
        if not np.array_equal(scale * middle, bias):
            return False
    return True


def _of_zeros(
    values: Scaled, bits: int, inputs: Sequence[ReadableTensor], middle: int
) -> Encoding | None:
    zeros = values.zeros
    is_symmetric, has_mins = bits in _SYMMETRIC, bits == 4 and middle != 0
    for cells in _pieces(values.scales.grid.table):
        if zeros is None or not (is_symmetric or has_mins):
            return None
        scale = values.scales.numbers.read(inputs, cells).astype(np.float32)
        zero = zeros.numbers.read(inputs, cells).astype(np.float32) + np.float32(values.zero)
        is_half = _is_half(scale)
        is_symmetric &= is_half and bool((zero == middle).all())
        with np.errstate(all="ignore"):
            has_mins &= is_half and _is_half(scale * zero)
    if is_symmetric:
        return ENCODINGS[_SYMMETRIC[bits]]
    return ENCODINGS["Q4_1"] if has_mins else None


def _are_half(numbers: PerBlock, inputs: Sequence[ReadableTensor]) -> bool:
    """Whether float16 represents all values of a table exactly."""
    pieces = _pieces(numbers.grid.table)
    return all(_is_half(numbers.numbers.read(inputs, cells)) for cells in pieces)


def _is_half(numbers: NDArray[Any]) -> bool:
    with np.errstate(all="ignore"):
        wide = numbers.astype(np.float32)
        narrow = wide.astype(np.float16).astype(np.float32)
    return bool(((narrow == wide) | np.isnan(wide)).all())


def _pieces(table: tuple[int, int]) -> list[Region]:
    rows, columns = table
    width = min(columns, _CELLS)
    height = max(1, _CELLS // width)
    return [
        Region(top, min(top + height, rows), left, min(left + width, columns))
        for top in range(0, rows, height)
        for left in range(0, columns, width)
    ]
