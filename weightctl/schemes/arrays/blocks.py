"""Integers, floats and scales of schemes as ggml's blocks, and back, without changing a value.

Integers are in groups of 32, whose scales are float16 in blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from weightctl.codecs.affine import Q4_1
from weightctl.codecs.e2m1 import MXFP4, NVFP4
from weightctl.codecs.nibbles import pack_pairs, unpack_pairs
from weightctl.codecs.q8_0 import Q8_0
from weightctl.codecs.symmetric import Q4_0
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.schemes.arrays.rounding import Affine, Biased, Codes, Microscaled4, Symmetric
from weightctl.schemes.arrays.tables import Region
from weightctl.weights.steps.numbers import read_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding
    from weightctl.schemes.arrays.rounding import Rounding
    from weightctl.schemes.arrays.tables import NumberTable, PerBlock
    from weightctl.schemes.arrays.values import Scaled
    from weightctl.weights.derived import ReadableTensor

    _Integers: TypeAlias = Symmetric | Affine | Biased

_GROUP = 32
# The smallest bytes of scales that blocks cannot hold: NaN as E8M0, NaN or a sign as E4M3.
_INVALID = {"MXFP4": (255, "NaN"), "NVFP4": (0x7F, "NaN or negative")}
# The number of elements with a common scale in these blocks.
_SCALED = {"MXFP4": 32, "NVFP4": 16}
# The number of cells of a table of scales, and of values, that are read at a time.
_CELLS = _RUN = 1 << 20
_BLOCKS = {
    "Q4_0": Q4_0.block_dtype,
    "Q4_1": Q4_1.block_dtype,
    "Q8_0": Q8_0.block_dtype,
    "MXFP4": MXFP4.block_dtype,
    "NVFP4": NVFP4.block_dtype,
}
# The encoding with a symmetric range, and the one with minima, by the bit width.
_SYMMETRIC = {4: "Q4_0", 8: "Q8_0"}
_WITH_MINS = {4: "Q4_1"}


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
        made["low"] = pack_pairs(levels.view(np.uint8))
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
    """4-bit floats and the bytes of their scales as MXFP4 or NVFP4.

    Scales are checked if the bytes of a file can be invalid.
    """

    codes: NumberTable
    scales: PerBlock
    encoding: Encoding
    is_checked: bool = True

    def read(self, inputs: Sequence[ReadableTensor], region: Region, /, *, transposed: bool) -> U8:
        """Return a rectangle; raises `ConversionError` for scales that blocks cannot store."""
        name, block = self.encoding.name, self.encoding.block
        codes = _group_rows(self.codes.read(inputs, region), transposed=transposed, group=block)
        scales = self.scales.read(inputs, region)
        invalid, what = _INVALID[name]
        if self.is_checked and bool((scales >= invalid).any()):
            raise ConversionError(
                f"a scale of `{inputs[0].info.name}` is {what}, which {name} cannot hold",
                hint="the checkpoint is damaged",
            )
        made = np.empty(codes.shape[:2], _BLOCKS[name])
        group = _SCALED[name]
        first = _firsts(region, transposed=transposed, group=group)
        field = made["exponent" if name == "MXFP4" else "scales"]
        field[:] = _sample_scales(scales, region, first, transposed=transposed).reshape(field.shape)
        # Codes are packed in groups of a scale.
        made["q"] = pack_pairs(codes.reshape(*made["q"].shape[:-1], group))
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
        return ENCODINGS[_WITH_MINS[bits]] if bits in _WITH_MINS else None
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
    is_symmetric, has_mins = bits in _SYMMETRIC, bits in _WITH_MINS and middle != 0
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
    return ENCODINGS[_WITH_MINS[bits]] if has_mins else None


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


def can_repack(tensor: ReadableTensor, rounding: Rounding) -> bool:
    """Whether the codes and scales of a rounding hold the values of a tensor's blocks.

    For some pairs of encodings and roundings this depends on the scales and minima: blocks are read
    until one of them does not fit. If the scale of a block of integers exceeds 511, the minimum of
    the group can exceed float16; such a weight is refused when it is read.
    """
    name = tensor.info.encoding.name
    if isinstance(rounding, Microscaled4):
        return name == ("NVFP4" if rounding.is_nvidia else "MXFP4")
    if not isinstance(rounding, Symmetric | Affine | Biased) or rounding.stored != "F16":
        return False
    is_symmetric = name == _SYMMETRIC.get(rounding.bits)
    if rounding.columns % _GROUP or not (is_symmetric or name == _WITH_MINS.get(rounding.bits)):
        return False
    if rounding.columns == _GROUP and (is_symmetric or isinstance(rounding, Biased)):
        return True
    return _fits_all(tensor, rounding)


def _fits_all(tensor: ReadableTensor, rounding: _Integers) -> bool:
    """Whether the blocks of each group have one scale and minimum, which the rounding can hold."""
    info = tensor.info
    count = rounding.columns // _GROUP
    step = max(1, _RUN // info.row) * info.row
    for first in range(0, info.size, step):
        raw = read_blocks(tensor, first, min(step, info.size - first))
        groups = raw.view(_BLOCKS[info.encoding.name]).reshape(-1, count)
        for key in {"scale", "min"}.intersection(groups.dtype.names or ()):
            bits = groups[key].view(np.uint16)
            if not bool((bits == bits[:, :1]).all()):
                return False
        if "min" in (groups.dtype.names or ()) and not isinstance(rounding, Biased):
            scales, mins = (groups[key][:, :1].astype(np.float32) for key in ("scale", "min"))
            zeros = _find_zeros(scales, mins)
            if isinstance(rounding, Symmetric):
                zeros[:] = 8
            # The products are exact.
            if not np.array_equal(-(scales * zeros.astype(np.float32)), mins):
                return False
    return True


def _find_zeros(scales: F32, mins: F32) -> U8:
    """Return the zero points from 0 to 15 that are nearest to those of scales and minima."""
    with np.errstate(all="ignore"):
        zeros = np.nan_to_num(np.rint(-mins / scales), nan=0, posinf=0, neginf=0)
    made: U8 = np.clip(zeros, 0, 15).astype(np.uint8)
    return made


def repack(raw: U8, encoding: Encoding, rounding: Rounding) -> Codes:
    """Return the codes and scales of blocks, shape (rows, bytes), which the rounding can hold.

    NVIDIA's scales are relative to a scale of 1 for the whole weight.
    """
    blocks = raw.view(_BLOCKS[encoding.name])
    if not isinstance(rounding, Symmetric | Affine | Biased):
        return _repack_floats(blocks)
    codes = _read_codes(blocks)
    firsts = blocks[:, :: rounding.columns // _GROUP]
    scales: NDArray[np.float16] = np.ascontiguousarray(firsts["scale"])
    middle = 1 << (rounding.bits - 1)
    if isinstance(rounding, Biased):
        return Codes(codes, scales.view(np.uint8), _find_mins(firsts, scales, middle))
    zeros = None
    if isinstance(rounding, Affine):
        zeros = np.full(scales.shape, middle, np.uint8)
        if "min" in (blocks.dtype.names or ()):
            zeros = _find_zeros(scales.astype(np.float32), firsts["min"].astype(np.float32))
    return Codes(codes, scales.view(np.uint8), zeros)


def _read_codes(blocks: NDArray[Any]) -> U8:
    """Return the integers of blocks, shape (rows, values), as numbers that are not negative."""
    if "q" in (blocks.dtype.names or ()):
        codes: U8 = blocks["q"].view(np.uint8) ^ np.uint8(128)
    else:
        codes = unpack_pairs(blocks["low"])
    return codes.reshape(len(blocks), -1)


def _find_mins(blocks: NDArray[Any], scales: NDArray[np.float16], middle: int) -> U8:
    """Return the value of the integer 0 in each block, as the bytes of float16."""
    if "min" in (blocks.dtype.names or ()):
        return np.ascontiguousarray(blocks["min"]).view(np.uint8)
    # A power of two changes only the exponent.
    with np.errstate(over="ignore"):
        return (scales * np.float16(-middle)).view(np.uint8)


def _repack_floats(blocks: NDArray[Any]) -> Codes:
    codes = unpack_pairs(blocks["q"]).reshape(len(blocks), -1)
    if "exponent" in (blocks.dtype.names or ()):
        return Codes(codes, np.ascontiguousarray(blocks["exponent"]))
    # ggml ignores the sign of a scale, and reads NaN as 0.
    scales = blocks["scales"].reshape(len(blocks), -1) & np.uint8(0x7F)
    scales[scales == 0x7F] = 0
    return Codes(codes, scales)
