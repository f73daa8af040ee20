"""Rounding of values to integers, floats and codes, with a scale for each block of a matrix.

A rounding takes a tile of a weight, and restores the values that its codes represent. Scales are
rounded to their stored type first, so codes are chosen for the scales that are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightctl.codecs import transcode
from weightctl.codecs.scalar import convert, pack
from weightctl.dtype import ENCODINGS, DType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

# More columns than a row can have.
WHOLE_ROW = 1 << 60
# The largest number of neighbors for which halves are compared.
_FEW = 32
# The values of 4-bit floats by code: a sign, two bits of exponent, one of mantissa.
E2M1: tuple[float, ...] = (
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
)  # fmt: skip
_E4M3_LARGEST = np.float32(448)
_E2M1_LARGEST = np.float32(6)
# The number of values whose codes are computed at a time, which fit into the processor's cache.
_PIECE = 1 << 15
# The smallest scale of MLX.
_LEAST = np.float32(1e-7)


class Codes(NamedTuple):
    """A tile of a weight: `codes` of shape (r, c), and tables with a cell for each block.

    `scales` and `offsets` are bytes as they are stored, along the last axis. Offsets are zero
    points as codes, or biases.
    """

    codes: U8
    scales: U8
    offsets: U8 | None = None


class Clips(NamedTuple):
    """Factors of the smallest and the largest value of each block, from which scales are computed.

    If the scale depends on the largest magnitude, only `high` applies.
    """

    low: F32
    high: F32


class RoundedBlocks(NamedTuple):
    """The blocks of a rounding, `rows` x `columns` values, and what their codes are.

    `columns` is 0 if the whole weight is a block, and can be larger than a row. `kind` is that of
    `kernels.BlockRounder`; integers are at most `most`. Scales are chosen for the minimum and the
    maximum of a block if it `has_ranges`, otherwise for its largest magnitude. If codes are places
    in a table, it is `table`.
    """

    kind: str
    rows: int
    columns: int
    most: int = 0
    has_ranges: bool = False
    table: tuple[float, ...] = ()


class Scales(NamedTuple):
    """A table of scales, and one of zero points or biases: as they are stored, and as float32."""

    stored: U8
    held: F32
    offsets: U8 | None = None
    zeros: F32 | None = None


class Rounding:
    """A way to round the values of a weight, in tiles of whole blocks.

    The codes of a block depend only on its scale, so that kernels can find them.
    """

    __slots__ = ()

    @property
    def grid(self) -> RoundedBlocks:
        raise NotImplementedError

    @property
    def needs_peak(self) -> bool:
        """Whether codes depend on the largest magnitude of the whole weight."""
        return False

    def scale_of_weight(self, _peak: np.float32, /) -> np.float32:
        """Return the scale of a weight, by which the scales of its blocks are multiplied.

        It can depend on the largest magnitude.
        """
        return np.float32(1)

    def choose(self, edges: tuple[F32, ...], peak: np.float32, /) -> Scales:
        """Return the scales for the extremes of blocks; `peak` is that of the whole weight."""
        raise NotImplementedError

    def find_codes(self, blocks: F32, scales: F32, zeros: F32 | None, /) -> U8:
        """Return the codes of values; tables of scales and zero points broadcast."""
        raise NotImplementedError

    def find_levels(self, codes: U8, /) -> F32:
        """Return the values of codes at a scale of 1."""
        raise NotImplementedError

    def read_scales(self, raw: U8, peak: np.float32, /) -> F32:
        """Return stored scales."""
        raise NotImplementedError

    def read_offsets(self, raw: U8, /) -> F32:
        """Return stored zero points or biases."""
        raise NotImplementedError

    def scale(self, blocks: F32, scales: F32, offsets: F32 | None, /) -> None:
        """Multiply the values of codes by scales, in place."""
        del offsets
        blocks *= scales

    def round(self, values: F32, peak: np.float32, clips: Clips | None = None, /) -> Codes:
        """Round a tile, shape (r, c); `peak` is the largest magnitude of the whole weight.

        With `clips`, scales are computed for other ranges, and values beyond them are clipped.
        """
        grid, high = self.grid, clips and clips.high
        edges: tuple[F32, ...] = ()
        if grid.has_ranges:
            edges = find_ranges(values, grid.columns, clips)
        elif grid.columns:
            edges = (clip(find_peaks(values, grid.rows, grid.columns), high),)
        else:
            peak = clip(np.full((1, 1), peak, np.float32), high)[0, 0]
        chosen, shape = self.choose(edges, peak), shape_of(values)
        scales = spread(chosen.held, shape, grid)
        zeros = None if chosen.zeros is None else spread(chosen.zeros, shape, grid)
        codes = self.find_codes(view_blocks(values, scales), scales, zeros)
        return Codes(codes.reshape(shape), chosen.stored, chosen.offsets)

    def restore(self, made: Codes, peak: np.float32, /) -> F32:
        """Return the values that the codes represent."""
        held, shape = self.find_levels(made.codes), shape_of(made.codes)
        scales = spread(self.read_scales(made.scales, peak), shape, self.grid)
        offsets = None
        if made.offsets is not None:
            offsets = spread(self.read_offsets(made.offsets), shape, self.grid)
        self.scale(view_blocks(held, scales), scales, offsets)
        return held


def clip(edges: F32, factors: F32 | None) -> F32:
    """Return the largest or smallest values of blocks, multiplied by factors if there are any."""
    return edges if factors is None else edges * factors


def reduce_blocks(reduction: np.ufunc, values: F32, size: int, axis: int) -> F32:
    """Reduce each `size` neighbors along an axis; the last of them can be fewer."""
    length = values.shape[axis]
    if size >= length:
        whole: F32 = reduction.reduce(values, axis=axis, keepdims=True)
        return whole
    if length % size:
        made: F32 = reduction.reduceat(values, range(0, length, size), axis=axis)
        return made
    shape = (*values.shape[:axis], length // size, size, *values.shape[axis + 1 :])
    blocks: F32 = reduction.reduce(values.reshape(shape), axis=axis + 1)
    return blocks


def find_peaks(values: F32, rows: int, columns: int) -> F32:
    """Return the largest magnitude in each block of `rows` x `columns`."""
    peaks = np.abs(values)
    # A reduction of few neighbors takes longer than halves of all values at once.
    while columns <= _FEW and columns % 2 == 0 and peaks.shape[1] % 2 == 0:
        peaks = np.maximum(peaks[:, ::2], peaks[:, 1::2])
        columns //= 2
    if columns > 1:
        peaks = reduce_blocks(np.maximum, peaks, columns, 1)
    return peaks if rows == 1 else reduce_blocks(np.maximum, peaks, rows, 0)


def find_ranges(values: F32, columns: int, clips: Clips | None) -> tuple[F32, F32]:
    """Return the smallest and the largest values of blocks of a row, multiplied by ratios."""
    low = reduce_blocks(np.minimum, values, columns, 1)
    high = reduce_blocks(np.maximum, values, columns, 1)
    return (low, high) if clips is None else (low * clips.low, high * clips.high)


def spread(table: F32, shape: tuple[int, int], grid: RoundedBlocks) -> F32:
    """Return a table with a cell for each block of a tile, as `view_blocks` broadcasts it."""
    if grid.rows > 1 and table.shape[0] > 1:
        table = np.repeat(table, grid.rows, axis=0)[: shape[0]]
    if table.shape[1] > 1 and shape[1] % grid.columns:
        table = np.repeat(table, grid.columns, axis=1)[:, : shape[1]]
    return table[..., None]


def view_blocks(tile: NDArray[Any], table: NDArray[Any]) -> NDArray[Any]:
    """Return a view of a tile, shape (r, c), with which a table from `spread` broadcasts."""
    return tile.reshape(tile.shape[0], table.shape[1], -1)


def store(numbers: F32, encoding: str, *, zero: int = 1) -> tuple[U8, F32]:
    """Return the bytes of values in an encoding, and the stored values; 0 becomes `zero`.

    A block whose scale is too small for the type is stored as zeros, so that any scale is right.
    """
    dtype = _dtype(encoding)
    stored = convert(numbers, dtype)
    held: F32 = convert(stored, DType.float32)
    if zero and not held.all():
        held = np.where(held == 0, np.float32(zero), held)
        stored = convert(held, dtype)
    return pack(stored), held


def restore_numbers(raw: U8, encoding: str) -> F32:
    held = transcode(raw, ENCODINGS[encoding], ENCODINGS["F32"]).raw.view(np.float32)
    # Values that are stored as float32 are not changed in place.
    return held.copy() if encoding == "F32" else held


def _dtype(encoding: str) -> DType:
    found = ENCODINGS[encoding].dtype
    return DType.float32 if found is None else found


def shape_of(tile: NDArray[Any]) -> tuple[int, int]:
    """Return the number of rows and of columns."""
    rows, columns = tile.shape
    return rows, columns


@dataclass(frozen=True, slots=True)
class _Integers(Rounding):
    """Integers of `bits` bits with a scale per group of `columns` elements of a row."""

    bits: int
    columns: int
    stored: str

    @property
    def most(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    def find_codes(self, blocks: F32, scales: F32, zeros: F32 | None) -> U8:
        """Return the nearest integers."""
        scaled: F32 = np.divide(blocks, scales)
        np.rint(scaled, out=scaled)
        if zeros is not None:
            scaled += zeros
        np.clip(scaled, 0, self.most, out=scaled)
        return scaled.astype(np.uint8)

    def find_levels(self, codes: U8) -> F32:
        return codes.astype(np.float32)

    def read_scales(self, raw: U8, _peak: np.float32) -> F32:
        return restore_numbers(raw, self.stored)


@dataclass(frozen=True, slots=True)
class Symmetric(_Integers):
    """Integers whose middle is 0; codes are the integers plus half of the range.

    The scale maps the largest magnitude to the middle between the two largest magnitudes, as
    compressed-tensors and GPTQ do.
    """

    @property
    def grid(self) -> RoundedBlocks:
        return RoundedBlocks("zeros", 1, self.columns, self.most)

    def choose(self, edges: tuple[F32, ...], _peak: np.float32, /) -> Scales:
        """Return the scales for largest magnitudes; 0 is in the middle of the codes."""
        half = np.float32(1 << (self.bits - 1))
        raw, held = store(edges[0] / (half - np.float32(0.5)), self.stored)
        return Scales(raw, held, zeros=np.full(held.shape, half))

    def scale(self, blocks: F32, scales: F32, _offsets: F32 | None) -> None:
        blocks -= np.float32(1 << (self.bits - 1))
        blocks *= scales


@dataclass(frozen=True, slots=True)
class Affine(_Integers):
    """Integers with a zero point per group.

    The range of a group always contains 0, so that 0 is stored exactly.
    """

    @property
    def grid(self) -> RoundedBlocks:
        return RoundedBlocks("zeros", 1, self.columns, self.most, has_ranges=True)

    def choose(self, edges: tuple[F32, ...], _peak: np.float32, /) -> Scales:
        """Return the scales and zero points for minima and maxima."""
        low, high = np.minimum(edges[0], np.float32(0)), np.maximum(edges[1], np.float32(0))
        raw, held = store(np.divide(high - low, np.float32(self.most)), self.stored)
        zeros: F32 = np.clip(np.rint(-low / held), 0, self.most)
        return Scales(raw, held, zeros.astype(np.uint8), zeros)

    def read_offsets(self, raw: U8) -> F32:
        return raw.astype(np.float32)

    def scale(self, blocks: F32, scales: F32, offsets: F32 | None) -> None:
        if offsets is not None:
            blocks -= offsets
        blocks *= scales


@dataclass(frozen=True, slots=True)
class Biased(_Integers):
    """Integers with a bias per group, as MLX rounds them.

    The bias is the minimum or the maximum of the group, whichever is larger in magnitude. The scale
    is such that 0 is stored exactly; it is negative if the bias is the maximum.
    """

    @property
    def grid(self) -> RoundedBlocks:
        return RoundedBlocks("biases", 1, self.columns, self.most, has_ranges=True)

    def choose(self, edges: tuple[F32, ...], _peak: np.float32, /) -> Scales:
        """Return the scales and biases for minima and maxima."""
        low, high = edges
        is_low = np.abs(low) > np.abs(high)
        size = np.maximum((high - low) / np.float32(self.most), _LEAST)
        scale: F32 = np.where(is_low, size, -size)
        edge = np.where(is_low, low, high)
        steps = np.rint(edge / scale)
        scale = np.where(steps == 0, scale, edge / steps)
        raw, held = store(scale, self.stored)
        return Scales(
            raw, held, *store(np.where(steps == 0, np.float32(0), edge), self.stored, zero=0)
        )

    def find_codes(self, blocks: F32, scales: F32, zeros: F32 | None) -> U8:
        """Return the integers nearest to values without their bias."""
        scaled: F32 = np.subtract(blocks, 0 if zeros is None else zeros)
        scaled /= scales
        np.rint(scaled, out=scaled)
        np.clip(scaled, 0, self.most, out=scaled)
        return scaled.astype(np.uint8)

    def read_offsets(self, raw: U8) -> F32:
        return restore_numbers(raw, self.stored)

    def scale(self, blocks: F32, scales: F32, offsets: F32 | None) -> None:
        blocks *= scales
        if offsets is not None:
            blocks += offsets


@dataclass(frozen=True, slots=True)
class _ScaledByPeak(Rounding):
    """Rows with a scale each, which is their largest magnitude."""

    def choose(self, edges: tuple[F32, ...], _peak: np.float32, /) -> Scales:
        return Scales(*store(edges[0], "F32"))

    def read_scales(self, raw: U8, _peak: np.float32) -> F32:
        return restore_numbers(raw, "F32")


@dataclass(frozen=True, slots=True)
class RowScaled(_ScaledByPeak):
    """Signed integers of 8 bits; the largest magnitude of a row, which is stored, becomes 127."""

    @property
    def grid(self) -> RoundedBlocks:
        return RoundedBlocks("INT8", 1, WHOLE_ROW)

    def find_codes(self, blocks: F32, scales: F32, _zeros: F32 | None) -> U8:
        """Return the nearest integers; those beyond the range of a searched scale are clipped."""
        scaled: F32 = np.divide(blocks, scales)
        scaled *= np.float32(127)
        np.rint(scaled, out=scaled)
        np.clip(scaled, -127, 127, out=scaled)
        return scaled.astype(np.int8).view(np.uint8)

    def find_levels(self, codes: U8) -> F32:
        return codes.view(np.int8).astype(np.float32)

    def scale(self, blocks: F32, scales: F32, _offsets: F32 | None) -> None:
        blocks *= scales
        blocks *= np.float32(1 / 127)


@dataclass(frozen=True, slots=True)
class Coded(_ScaledByPeak):
    """Codes into a table of ascending values from -1 to 1; a row is a block with its own scale.

    The table has 16 values.
    """

    values: tuple[float, ...]

    @property
    def grid(self) -> RoundedBlocks:
        return RoundedBlocks("table", 1, WHOLE_ROW, table=self.values)

    def find_codes(self, blocks: F32, scales: F32, _zeros: F32 | None) -> U8:
        """Return the codes of the nearest values of the table."""
        table = np.array(self.values, np.float32)
        between = (table[1:] + table[:-1]) / np.float32(2)
        return np.searchsorted(between, blocks / scales).astype(np.uint8)

    def find_levels(self, codes: U8) -> F32:
        return np.take(np.array(self.values, np.float32), codes)


@dataclass(frozen=True, slots=True)
class _InE4M3(Rounding):
    """Floats of 8 bits: E4M3."""

    def find_codes(self, blocks: F32, scales: F32, _zeros: F32 | None) -> U8:
        """Return the nearest floats."""
        return _as_float8(np.divide(blocks, scales))

    def find_levels(self, codes: U8) -> F32:
        return restore_numbers(codes, "F8_E4M3")


@dataclass(frozen=True, slots=True)
class Float8(_InE4M3):
    """E4M3 with a scale per block of `rows` x `columns`; for the whole weight if both are 0."""

    rows: int
    columns: int
    stored: str

    @property
    def grid(self) -> RoundedBlocks:
        return RoundedBlocks("E4M3", self.rows, self.columns)

    @property
    def needs_peak(self) -> bool:
        return not self.columns

    def choose(self, edges: tuple[F32, ...], peak: np.float32, /) -> Scales:
        """Return the scales that map largest magnitudes to that of E4M3."""
        peaks = edges[0] if self.columns else np.full((1, 1), peak, np.float32)
        return Scales(*store(peaks / _E4M3_LARGEST, self.stored))

    def read_scales(self, raw: U8, _peak: np.float32) -> F32:
        return restore_numbers(raw, self.stored)


@dataclass(frozen=True, slots=True)
class Microscaled8(_InE4M3):
    """MXFP8: E4M3 with a power of two per `columns` elements of a row."""

    columns: int = 32

    @property
    def grid(self) -> RoundedBlocks:
        return RoundedBlocks("E4M3", 1, self.columns)

    def choose(self, edges: tuple[F32, ...], _peak: np.float32, /) -> Scales:
        """Return the powers of two for largest magnitudes."""
        exponents = _choose_exponents(edges[0], 8)
        return Scales(exponents, _powers(exponents))

    def read_scales(self, raw: U8, _peak: np.float32) -> F32:
        return _powers(raw)


@dataclass(frozen=True, slots=True)
class Microscaled4(Rounding):
    """E2M1 with a scale per `columns` elements of a row: a power of two, or E4M3 if `is_nvidia`.

    NVIDIA's scales are relative to a scale of the whole weight: `whole`, or if it is 0 the one that
    maps the largest magnitude to the largest scale and code.
    """

    columns: int
    is_nvidia: bool = False
    whole: float = 0

    @property
    def grid(self) -> RoundedBlocks:
        return RoundedBlocks("E2M1", 1, self.columns)

    @property
    def needs_peak(self) -> bool:
        return self.is_nvidia and not self.whole

    def choose(self, edges: tuple[F32, ...], peak: np.float32, /) -> Scales:
        """Return the scales for largest magnitudes."""
        if self.is_nvidia:
            scaled: F32 = edges[0] / _E2M1_LARGEST * self.scale_of_weight(peak)
            raw = _as_float8(scaled)
        else:
            raw = _choose_exponents(edges[0], 2)
        return Scales(raw, self.read_scales(raw, peak))

    def scale_of_weight(self, peak: np.float32) -> np.float32:
        """Return the scale of a weight in NVFP4."""
        if self.whole:
            return np.float32(self.whole)
        if not peak:
            return np.float32(1)
        scale = _E4M3_LARGEST * _E2M1_LARGEST / peak
        return scale if np.isfinite(scale) else np.finfo(np.float32).max

    def find_codes(self, blocks: F32, scales: F32, _zeros: F32 | None) -> U8:
        """Return the nearest floats; 0 where values are too small for the smallest scale."""
        scaled: F32 = np.divide(blocks, scales)
        if self.is_nvidia and not scales.all():
            np.copyto(scaled, np.float32(0), where=scales == 0)
        return _as_float4(scaled)

    def find_levels(self, codes: U8) -> F32:
        return np.take(np.array(E2M1, np.float32), codes)

    def read_scales(self, raw: U8, peak: np.float32) -> F32:
        if not self.is_nvidia:
            return _powers(raw)
        return restore_numbers(raw, "F8_E4M3") / self.scale_of_weight(peak)


def _as_float8(values: F32) -> U8:
    """Return values of any size as E4M3, at most 448."""
    np.clip(values, -_E4M3_LARGEST, _E4M3_LARGEST, out=values)
    raw = values.reshape(1, -1).view(np.uint8)
    return transcode(raw, ENCODINGS["F32"], ENCODINGS["F8_E4M3"]).raw.reshape(values.shape)


def _as_float4(values: F32) -> U8:
    """Return codes of E2M1, half to even, at most 6; zero has no sign."""
    codes = np.empty(values.shape, np.uint8)
    flat, made = values.reshape(-1), codes.reshape(-1)
    for first in range(0, flat.size, _PIECE):
        _fill_float4(flat[first : first + _PIECE], made[first : first + _PIECE])
    return codes


def _fill_float4(values: F32, codes: U8) -> None:
    magnitudes = np.minimum(np.abs(values), _E2M1_LARGEST)
    # From 1 on, a code is the exponent and the first bit of the mantissa. Below, a step is a half,
    # and these bits are no larger than the code.
    bits = magnitudes.view(np.int32)
    rounded = bits >> np.int32(22)
    rounded &= np.int32(1)
    rounded += bits
    rounded += np.int32((1 << 21) - 1 - (2 * 126 << 22))
    rounded >>= np.int32(22)
    np.minimum(magnitudes, np.float32(1), out=magnitudes)
    magnitudes *= np.float32(2)
    np.rint(magnitudes, out=magnitudes)
    np.maximum(rounded, magnitudes.astype(np.int32), out=rounded)
    codes[:] = rounded
    codes |= ((values < 0) & (codes > 0)).view(np.uint8) << np.uint8(3)


def _choose_exponents(peaks: F32, largest: int) -> U8:
    """Return the E8M0 exponents that scale peaks to at most 2**`largest` times 1.75.

    E4M3 (448) and E2M1 (6, which 7 is rounded to) reach about this; compressed-tensors does the
    same.
    """
    raised = peaks.view(np.uint32) + np.uint32(1 << 21)
    exponents = (raised >> np.uint32(23)).astype(np.int32) - largest
    made: U8 = np.clip(exponents, 0, 254).astype(np.uint8)
    return made


def _powers(exponents: U8) -> F32:
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
