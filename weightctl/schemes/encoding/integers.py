"""Rounding to integers: symmetric, with zero points, with biases, and rows of 8 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weightctl.schemes.encoding.rounding import (
    WHOLE_ROW,
    BlockRounding,
    Codes,
    RoundedBlocks,
    Scales,
    clip,
    find_peaks,
    find_ranges,
    restore_numbers,
    shape_of,
    spread,
    store,
    view_blocks,
)

if TYPE_CHECKING:
    from weightctl.codecs.base import F32
    from weightctl.schemes.encoding.rounding import Clips

# The smallest scale of MLX.
_LEAST = np.float32(1e-7)


@dataclass(frozen=True, slots=True)
class Symmetric(BlockRounding):
    """Integers of `bits` bits with a scale per group of `columns` elements of a row.

    Codes are the integers plus half of the range. The scale maps the largest magnitude to the
    middle between the two largest magnitudes, as compressed-tensors and GPTQ do.
    """

    bits: int
    columns: int
    stored: str

    @property
    def grid(self) -> RoundedBlocks:
        return RoundedBlocks("zeros", 1, self.columns, (1 << self.bits) - 1)

    def choose(self, edges: tuple[F32, ...], _peak: np.float32, /) -> Scales:
        """Return the scales for largest magnitudes; 0 is in the middle of the codes."""
        half = np.float32(1 << (self.bits - 1))
        raw, held = store(edges[0] / (half - np.float32(0.5)), self.stored)
        return Scales(raw, held, zeros=np.full(held.shape, half))

    def round(self, values: F32, peak: np.float32, clips: Clips | None = None) -> Codes:
        """Round a tile to the nearest integers."""
        half = 1 << (self.bits - 1)
        peaks = clip(find_peaks(values, 1, self.columns), clips and clips.high)
        chosen = self.choose((peaks,), peak)
        scales = spread(chosen.held, shape_of(values), 1, self.columns)
        scaled: F32 = np.divide(view_blocks(values, scales), scales)
        np.rint(scaled, out=scaled)
        np.clip(scaled, -half, half - 1, out=scaled)
        scaled += np.float32(half)
        return Codes(scaled.astype(np.uint8).reshape(values.shape), chosen.stored)

    def restore(self, made: Codes, _peak: np.float32) -> F32:
        """Return the values that the codes represent."""
        scales = spread(
            restore_numbers(made.scales, self.stored), shape_of(made.codes), 1, self.columns
        )
        held = made.codes.astype(np.float32)
        held -= np.float32(1 << (self.bits - 1))
        blocks = view_blocks(held, scales)
        blocks *= scales
        return held


@dataclass(frozen=True, slots=True)
class Affine(BlockRounding):
    """Integers of `bits` bits with a scale and a zero point per group of a row.

    The range of a group always contains 0, so that 0 is stored exactly.
    """

    bits: int
    columns: int
    stored: str

    @property
    def grid(self) -> RoundedBlocks:
        return RoundedBlocks("zeros", 1, self.columns, (1 << self.bits) - 1, has_ranges=True)

    def choose(self, edges: tuple[F32, ...], _peak: np.float32, /) -> Scales:
        """Return the scales and zero points for minima and maxima."""
        most = (1 << self.bits) - 1
        low, high = np.minimum(edges[0], np.float32(0)), np.maximum(edges[1], np.float32(0))
        raw, held = store(np.divide(high - low, np.float32(most)), self.stored)
        zeros: F32 = np.clip(np.rint(-low / held), 0, most)
        return Scales(raw, held, zeros.astype(np.uint8), zeros)

    def round(self, values: F32, peak: np.float32, clips: Clips | None = None) -> Codes:
        """Round a tile to the nearest integers."""
        most = (1 << self.bits) - 1
        chosen = self.choose(find_ranges(values, self.columns, clips), peak)
        scales = spread(chosen.held, shape_of(values), 1, self.columns)
        scaled: F32 = np.divide(view_blocks(values, scales), scales)
        np.rint(scaled, out=scaled)
        if chosen.zeros is not None:
            scaled += spread(chosen.zeros, shape_of(values), 1, self.columns)
        np.clip(scaled, 0, most, out=scaled)
        codes = scaled.astype(np.uint8).reshape(values.shape)
        return Codes(codes, chosen.stored, chosen.offsets)

    def restore(self, made: Codes, _peak: np.float32) -> F32:
        """Return the values that the codes represent."""
        shape = shape_of(made.codes)
        scales = spread(restore_numbers(made.scales, self.stored), shape, 1, self.columns)
        zeros = np.zeros((1, 1), np.uint8) if made.offsets is None else made.offsets
        held = made.codes.astype(np.float32)
        blocks = view_blocks(held, scales)
        blocks -= spread(zeros, shape, 1, self.columns).astype(np.float32)
        blocks *= scales
        return held


@dataclass(frozen=True, slots=True)
class Biased(BlockRounding):
    """Integers of `bits` bits with a scale and a bias per group of a row, as MLX rounds them.

    The bias is the minimum or the maximum of the group, whichever is larger in magnitude. The scale
    is such that 0 is stored exactly; it is negative if the bias is the maximum.
    """

    bits: int
    columns: int
    stored: str

    @property
    def grid(self) -> RoundedBlocks:
        return RoundedBlocks("biases", 1, self.columns, (1 << self.bits) - 1, has_ranges=True)

    def choose(self, edges: tuple[F32, ...], _peak: np.float32, /) -> Scales:
        """Return the scales and biases for minima and maxima."""
        most = np.float32((1 << self.bits) - 1)
        low, high = edges
        is_low = np.abs(low) > np.abs(high)
        size = np.maximum((high - low) / most, _LEAST)
        scale: F32 = np.where(is_low, size, -size)
        edge = np.where(is_low, low, high)
        steps = np.rint(edge / scale)
        scale = np.where(steps == 0, scale, edge / steps)
        raw, held = store(scale, self.stored)
        return Scales(
            raw, held, *store(np.where(steps == 0, np.float32(0), edge), self.stored, zero=0)
        )

    def round(self, values: F32, peak: np.float32, clips: Clips | None = None) -> Codes:
        """Round a tile to the nearest integers."""
        chosen = self.choose(find_ranges(values, self.columns, clips), peak)
        scales = spread(chosen.held, shape_of(values), 1, self.columns)
        scaled: F32 = view_blocks(values, scales).copy()
        if chosen.zeros is not None:
            scaled -= spread(chosen.zeros, shape_of(values), 1, self.columns)
        scaled /= scales
        np.rint(scaled, out=scaled)
        np.clip(scaled, 0, (1 << self.bits) - 1, out=scaled)
        codes = scaled.astype(np.uint8).reshape(values.shape)
        return Codes(codes, chosen.stored, chosen.offsets)

    def restore(self, made: Codes, _peak: np.float32) -> F32:
        """Return the values that the codes represent."""
        shape = shape_of(made.codes)
        held = made.codes.astype(np.float32)
        scales = spread(restore_numbers(made.scales, self.stored), shape, 1, self.columns)
        blocks = view_blocks(held, scales)
        blocks *= scales
        if made.offsets is not None:
            blocks += spread(restore_numbers(made.offsets, self.stored), shape, 1, self.columns)
        return held


@dataclass(frozen=True, slots=True)
class RowScaled(BlockRounding):
    """Signed integers of 8 bits; the largest magnitude of a row, which is stored, becomes 127."""

    @property
    def grid(self) -> RoundedBlocks:
        return RoundedBlocks("INT8", 1, WHOLE_ROW)

    def choose(self, edges: tuple[F32, ...], _peak: np.float32, /) -> Scales:
        return Scales(*store(edges[0], "F32"))

    def round(self, values: F32, peak: np.float32, clips: Clips | None = None) -> Codes:
        """Round a tile to the nearest integers."""
        peaks = clip(find_peaks(values, 1, values.shape[1]), clips and clips.high)
        chosen = self.choose((peaks,), peak)
        scaled = np.divide(values, chosen.held)
        scaled *= np.float32(127)
        np.rint(scaled, out=scaled)
        if clips is not None:
            np.clip(scaled, -127, 127, out=scaled)
        return Codes(scaled.astype(np.int8).view(np.uint8), chosen.stored)

    def restore(self, made: Codes, _peak: np.float32) -> F32:
        """Return the values that the codes represent."""
        held = made.codes.view(np.int8).astype(np.float32)
        held *= restore_numbers(made.scales, "F32")
        held *= np.float32(1 / 127)
        return held
