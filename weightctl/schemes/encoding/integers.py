"""Rounding to integers: symmetric, with zero points, with biases, and rows of 8 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weightctl.schemes.encoding.rounding import (
    Codes,
    clip,
    find_peaks,
    reduce_blocks,
    restore_numbers,
    shape_of,
    spread,
    store,
    view_blocks,
)

if TYPE_CHECKING:
    from weightctl.codecs.base import F32
    from weightctl.schemes.encoding.rounding import Clips

__all__ = ["Affine", "Biased", "RowScaled", "Symmetric"]

# The smallest scale of MLX.
_LEAST = np.float32(1e-7)


@dataclass(frozen=True, slots=True)
class Symmetric:
    """Integers of `bits` bits with a scale per group of `columns` elements of a row.

    Codes are the integers plus half of the range. The scale maps the largest magnitude to the
    middle between the two largest magnitudes, as compressed-tensors and GPTQ do.
    """

    bits: int
    columns: int
    stored: str

    def round(self, values: F32, _peak: np.float32, clips: Clips | None = None) -> Codes:
        """Round a tile to the nearest integers."""
        half = 1 << (self.bits - 1)
        peaks = clip(find_peaks(values, 1, self.columns), clips and clips.high)
        raw, held = store(peaks / np.float32(half - 0.5), self.stored)
        scales = spread(held, shape_of(values), 1, self.columns)
        scaled: F32 = np.divide(view_blocks(values, scales), scales)
        np.rint(scaled, out=scaled)
        np.clip(scaled, -half, half - 1, out=scaled)
        scaled += np.float32(half)
        return Codes(scaled.astype(np.uint8).reshape(values.shape), raw)

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
class Affine:
    """Integers of `bits` bits with a scale and a zero point per group of a row.

    The range of a group always contains 0, so that 0 is stored exactly.
    """

    bits: int
    columns: int
    stored: str

    def round(self, values: F32, _peak: np.float32, clips: Clips | None = None) -> Codes:
        """Round a tile to the nearest integers."""
        most = (1 << self.bits) - 1
        high = np.maximum(reduce_blocks(np.maximum, values, self.columns, 1), np.float32(0))
        low = np.minimum(reduce_blocks(np.minimum, values, self.columns, 1), np.float32(0))
        high, low = clip(high, clips and clips.high), clip(low, clips and clips.low)
        raw, held = store(np.divide(high - low, np.float32(most)), self.stored)
        zeros = np.clip(np.rint(-low / held), 0, most)
        scales = spread(held, shape_of(values), 1, self.columns)
        scaled: F32 = np.divide(view_blocks(values, scales), scales)
        np.rint(scaled, out=scaled)
        scaled += spread(zeros, shape_of(values), 1, self.columns)
        np.clip(scaled, 0, most, out=scaled)
        return Codes(scaled.astype(np.uint8).reshape(values.shape), raw, zeros.astype(np.uint8))

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
class Biased:
    """Integers of `bits` bits with a scale and a bias per group of a row, as MLX rounds them.

    The bias is the minimum or the maximum of the group, whichever is larger in magnitude. The scale
    is such that 0 is stored exactly; it is negative if the bias is the maximum.
    """

    bits: int
    columns: int
    stored: str

    def round(self, values: F32, _peak: np.float32, clips: Clips | None = None) -> Codes:
        """Round a tile to the nearest integers."""
        most = np.float32((1 << self.bits) - 1)
        high = reduce_blocks(np.maximum, values, self.columns, 1)
        low = reduce_blocks(np.minimum, values, self.columns, 1)
        high, low = clip(high, clips and clips.high), clip(low, clips and clips.low)
        is_low = np.abs(low) > np.abs(high)
        size = np.maximum((high - low) / most, _LEAST)
        scale: F32 = np.where(is_low, size, -size)
        edge = np.where(is_low, low, high)
        steps = np.rint(edge / scale)
        scale = np.where(steps == 0, scale, edge / steps)
        raw, held = store(scale, self.stored)
        offsets, biases = store(np.where(steps == 0, np.float32(0), edge), self.stored, zero=0)
        scales = spread(held, shape_of(values), 1, self.columns)
        scaled: F32 = view_blocks(values, scales) - spread(
            biases, shape_of(values), 1, self.columns
        )
        scaled /= scales
        np.rint(scaled, out=scaled)
        np.clip(scaled, 0, most, out=scaled)
        return Codes(scaled.astype(np.uint8).reshape(values.shape), raw, offsets)

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
class RowScaled:
    """Signed integers of 8 bits; the largest magnitude of a row, which is stored, becomes 127."""

    def round(self, values: F32, _peak: np.float32, clips: Clips | None = None) -> Codes:
        """Round a tile to the nearest integers."""
        peaks = find_peaks(values, 1, values.shape[1])
        raw, held = store(clip(peaks, clips and clips.high), "F32")
        scaled = np.divide(values, held)
        scaled *= np.float32(127)
        np.rint(scaled, out=scaled)
        if clips is not None:
            np.clip(scaled, -127, 127, out=scaled)
        return Codes(scaled.astype(np.int8).view(np.uint8), raw)

    def restore(self, made: Codes, _peak: np.float32) -> F32:
        """Return the values that the codes represent."""
        held = made.codes.view(np.int8).astype(np.float32)
        held *= restore_numbers(made.scales, "F32")
        held *= np.float32(1 / 127)
        return held
