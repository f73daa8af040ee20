"""Rounding to floats of 8 and 4 bits, and to codes into a table of values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.schemes.encoding.rounding import (
    WHOLE_ROW,
    BlockRounding,
    Codes,
    RoundedBlocks,
    Scales,
    clip,
    find_peaks,
    restore_numbers,
    shape_of,
    spread,
    store,
    view_blocks,
)

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8
    from weightctl.schemes.encoding.rounding import Clips

_E4M3_LARGEST = np.float32(448)
_E2M1_LARGEST = np.float32(6)
# The number of values whose codes are computed at a time, which fit into the processor's cache.
_PIECE = 1 << 15
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


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


@dataclass(frozen=True, slots=True)
class Float8(BlockRounding):
    """E4M3 with a scale per block of `rows` x `columns`; for the whole weight if both are 0."""

    rows: int
    columns: int
    stored: str

    @property
    def grid(self) -> RoundedBlocks:
        return RoundedBlocks("E4M3", self.rows, self.columns)

    def choose(self, edges: tuple[F32, ...], peak: np.float32, /) -> Scales:
        """Return the scales that map largest magnitudes to that of E4M3."""
        peaks = edges[0] if self.columns else np.full((1, 1), peak, np.float32)
        return Scales(*store(peaks / _E4M3_LARGEST, self.stored))

    def round(self, values: F32, peak: np.float32, clips: Clips | None = None) -> Codes:
        """Round a tile to the nearest floats."""
        high = clips and clips.high
        if self.columns:
            peaks = clip(find_peaks(values, self.rows, self.columns), high)
            chosen = self.choose((peaks,), peak)
        else:
            chosen = self.choose((), clip(np.full((1, 1), peak, np.float32), high)[0, 0])
        scales = self._spread(chosen.held, shape_of(values))
        scaled: F32 = np.divide(view_blocks(values, scales), scales)
        return Codes(_as_float8(scaled).reshape(values.shape), chosen.stored)

    def restore(self, made: Codes, _peak: np.float32) -> F32:
        """Return the values that the codes represent."""
        scales = self._spread(restore_numbers(made.scales, self.stored), shape_of(made.codes))
        held = restore_numbers(made.codes, "F8_E4M3")
        blocks = view_blocks(held, scales)
        blocks *= scales
        return held

    def _spread(self, scales: F32, shape: tuple[int, int]) -> F32:
        return spread(scales, shape, max(self.rows, 1), self.columns or shape[1])


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


@dataclass(frozen=True, slots=True)
class Microscaled8(BlockRounding):
    """MXFP8: E4M3 with a power of two per `columns` elements of a row."""

    columns: int = 32

    @property
    def grid(self) -> RoundedBlocks:
        return RoundedBlocks("E4M3", 1, self.columns)

    def choose(self, edges: tuple[F32, ...], _peak: np.float32, /) -> Scales:
        """Return the powers of two for largest magnitudes."""
        exponents = _choose_exponents(edges[0], 8)
        return Scales(exponents, _powers(exponents))

    def round(self, values: F32, peak: np.float32, clips: Clips | None = None) -> Codes:
        """Round a tile to the nearest floats."""
        peaks = clip(find_peaks(values, 1, self.columns), clips and clips.high)
        chosen = self.choose((peaks,), peak)
        scales = chosen.held[..., None]
        scaled: F32 = np.divide(view_blocks(values, scales), scales)
        return Codes(_as_float8(scaled).reshape(values.shape), chosen.stored)

    def restore(self, made: Codes, _peak: np.float32) -> F32:
        """Return the values that the codes represent."""
        held = restore_numbers(made.codes, "F8_E4M3")
        scales = _powers(made.scales)[..., None]
        blocks = view_blocks(held, scales)
        blocks *= scales
        return held


@dataclass(frozen=True, slots=True)
class Microscaled4(BlockRounding):
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

    def choose(self, edges: tuple[F32, ...], peak: np.float32, /) -> Scales:
        """Return the scales for largest magnitudes."""
        raw = self._encode_scales(edges[0], peak)
        return Scales(raw, self._decode_scales(raw, peak))

    def round(self, values: F32, peak: np.float32, clips: Clips | None = None) -> Codes:
        """Round a tile to the nearest floats."""
        peaks = clip(find_peaks(values, 1, self.columns), clips and clips.high)
        chosen = self.choose((peaks,), peak)
        scales = chosen.held[..., None]
        scaled: F32 = np.divide(view_blocks(values, scales), scales)
        if self.is_nvidia and not scales.all():
            # The values of this block are too small for the smallest scale.
            np.copyto(scaled, np.float32(0), where=scales == 0)
        return Codes(_as_float4(scaled).reshape(values.shape), chosen.stored)

    def _encode_scales(self, peaks: F32, peak: np.float32) -> U8:
        if not self.is_nvidia:
            return _choose_exponents(peaks, 2)
        scaled: F32 = peaks / _E2M1_LARGEST * global_scale(peak, self.whole)
        return _as_float8(scaled)

    def _decode_scales(self, raw: U8, peak: np.float32) -> F32:
        if not self.is_nvidia:
            return _powers(raw)
        return restore_numbers(raw, "F8_E4M3") / global_scale(peak, self.whole)

    def restore(self, made: Codes, peak: np.float32) -> F32:
        """Return the values that the codes represent."""
        held = np.take(_E2M1, made.codes)
        scales = self._decode_scales(made.scales, peak)[..., None]
        blocks = view_blocks(held, scales)
        blocks *= scales
        return held


def global_scale(peak: np.float32, whole: float = 0) -> np.float32:
    """Return the scale of a weight in NVFP4, by which the scales of its blocks are multiplied.

    It is `whole` if that is not 0.
    """
    if whole:
        return np.float32(whole)
    if not peak:
        return np.float32(1)
    scale = _E4M3_LARGEST * _E2M1_LARGEST / peak
    return scale if np.isfinite(scale) else np.finfo(np.float32).max


@dataclass(frozen=True, slots=True)
class Coded(BlockRounding):
    """Codes into a table of ascending values from -1 to 1; a row is a block with its own scale.

    The table has 16 values.
    """

    values: tuple[float, ...]

    @property
    def grid(self) -> RoundedBlocks:
        return RoundedBlocks("table", 1, WHOLE_ROW, table=self.values)

    def choose(self, edges: tuple[F32, ...], _peak: np.float32, /) -> Scales:
        return Scales(*store(edges[0], "F32"))

    def round(self, values: F32, peak: np.float32, clips: Clips | None = None) -> Codes:
        """Round a tile to the nearest values of the table."""
        peaks = clip(find_peaks(values, 1, values.shape[1]), clips and clips.high)
        raw, held = self.choose((peaks,), peak)[:2]
        table = np.array(self.values, np.float32)
        between = (table[1:] + table[:-1]) / np.float32(2)
        codes = np.searchsorted(between, values / held).astype(np.uint8)
        return Codes(codes, raw)

    def restore(self, made: Codes, _peak: np.float32) -> F32:
        """Return the values that the codes represent."""
        held = np.take(np.array(self.values, np.float32), made.codes)
        held *= restore_numbers(made.scales, "F32")
        return held
