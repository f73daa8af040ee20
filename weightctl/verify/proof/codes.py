"""Whether the codes of ggml's blocks are those that an encoder chooses for known values.

An encoder with an importance matrix chooses the scales of a block freely, but then rounds each
value to the nearest level. So codes can be checked without knowing the matrix: there must be a
scale for which each code is the nearest one. The K-quants and IQ4_XS use the stored scale, and the
others one that is rounded afterwards, or fitted to the codes.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from weightctl.codecs import codec, definition
from weightctl.codecs.codebook import IQ4_LEVELS
from weightctl.kernels import ExaminedCodes, code_examiner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8, BlockCodec
    from weightctl.dtype import Encoding

    Bools = NDArray[np.bool_]
    F64 = NDArray[np.float64]
    # A block type's fields, which NumPy's types cannot say: each has a type and an offset.
    _Fields = Mapping[str, tuple[np.dtype[np.generic], int]]


class CodeLayout(NamedTuple):
    """The codes of a block type, and the scales for which an encoder chooses them.

    The bytes of `fields` hold the codes; if each is `lowest`, so are all codes, and likewise for
    `highest`. There are `codes` of them, for evenly spaced levels, or those of `levels`, times the
    scale. `shared` values have one scale. With `has_min`, the lowest level is free; otherwise a
    code represents 0.

    Codes are chosen for the stored scale. With `is_rounded`, it is rounded to float16 afterwards.
    With `fits_scale`, they are chosen for one scale, and the stored one is fitted to them; with
    `fits_min`, so is the min.
    """

    fields: tuple[str, ...]
    codes: int
    shared: int
    has_min: bool = False
    lowest: int = 0x00
    highest: int = 0xFF
    levels: tuple[int, ...] = ()
    is_rounded: bool = False
    fits_scale: bool = False
    fits_min: bool = False

    @property
    def spacing(self) -> float:
        """The mean distance of neighboring levels, in scales."""
        return (self.levels[-1] - self.levels[0]) / (self.codes - 1) if self.levels else 1.0

    @property
    def slopes(self) -> tuple[float, float]:
        """The least and the largest step, relative to that which covers the range of the values."""
        if self.has_min:
            return 0.0, _STEEPEST * (self.codes - 1) / (self.codes - 1 - _SHIFT)
        half = self.codes / 2
        return _FLATTEST * half / (half + _SHIFT), (1 + _FLATTEST) * half / (half - _SHIFT)


# The relative distance that rounding to float16 can cause, and one that no fit exceeds; and half of
# the least step of float16, by which small scales are rounded.
_ROUNDED, _FITTED = 2.0**-11, 1.5
_LEAST_ROUNDED = 2.0**-25
_LAYOUTS = {
    "Q2_K": CodeLayout(("q",), 4, 16, has_min=True),
    "Q3_K": CodeLayout(("high", "low"), 8, 16),
    "Q4_K": CodeLayout(("low",), 16, 32, has_min=True),
    "Q5_K": CodeLayout(("high", "low"), 32, 32, has_min=True),
    "Q6_K": CodeLayout(("low", "high"), 64, 16),
    "Q4_0": CodeLayout(("low",), 16, 32, fits_scale=True),
    "Q5_0": CodeLayout(("high", "low"), 32, 32, fits_scale=True),
    "Q4_1": CodeLayout(("low",), 16, 32, has_min=True, fits_min=True),
    "Q5_1": CodeLayout(("high", "low"), 32, 32, has_min=True, fits_min=True),
    "Q8_0": CodeLayout(("q",), 256, 32, lowest=0x80, highest=0x7F, is_rounded=True),
    "IQ4_NL": CodeLayout(("q",), 16, 32, levels=IQ4_LEVELS, is_rounded=True),
    "IQ4_XS": CodeLayout(("q",), 16, 32, levels=IQ4_LEVELS, is_rounded=True),
}
# The float32 rounding of the operations before a code is chosen: of the quotient, and of the value.
_TIE, _OPERATIONS = 1e-5, 2.0**-21
# The steps that an encoder may shift the end of the range by, before it fits a scale.
_SHIFT = 0.9
# A fit to codes is between their slopes: a code is at most half a step from its value. The second
# pair is for fits without a min.
_STEEPEST, _FLATTEST = 2.0, 0.5
# Scales that lie far from the values cause this many times the squared error of the best scale for
# the same codes; any usual importance causes less than 3 times as much. Mean squared errors below
# this part of a squared step are not examined: 1 / 12 is usual.
MOST_TIMES, _LEAST_ERROR = 5.0, 0.125
# The largest mean squared error in squares of the step that covers the range of the values.
_MOST_ERROR = 8.0
# The number of values to process at once, so that they stay in a core's cache.
_AREA = 1 << 16
# Larger values than this have a block scale that is not rounded to 0.
_LEAST_SCALED = 2e-4


class Judged(NamedTuple):
    """Which blocks have codes that no encoder chooses, and which have unusual scales, [blocks].

    A scale is unusual if it is outside the range of a fit, or if its values are far from those of
    the source, for example because most of them are beyond the highest level.
    """

    wrong: Bools
    unusual: Bools


def find_layout(encoding: Encoding) -> CodeLayout | None:
    """Return where an encoding has its codes; None if codes cannot be judged one by one."""
    return _LAYOUTS.get(encoding.name)


def judge_blocks(values: F32, raw: U8, encoding: Encoding, level: int | None = None) -> Judged:
    """Judge blocks of an encoding that `find_layout` knows.

    `values` are those of the source, shape (blocks, elements), and `raw` are the blocks, shape
    (blocks, bytes); both are contiguous. Kernels of a level, by default the active one, pass over
    blocks that are surely right.
    """
    found = Judged(np.zeros(len(raw), bool), np.zeros(len(raw), bool))
    doubtful = find_doubtful(values, raw, encoding, level)
    height = max(1, _AREA // encoding.block)
    for first in range(0, len(doubtful), height):
        some = doubtful[first : first + height]
        found.wrong[some], found.unusual[some] = _judge_tile(values[some], raw[some], encoding)
    return found


def find_doubtful(
    values: F32, raw: U8, encoding: Encoding, level: int | None = None
) -> NDArray[np.intp]:
    """Return the numbers of the blocks that may be wrong or unusual: without kernels, of all."""
    examiner = code_examiner(encoding.name, level)
    if examiner is None:
        return np.arange(len(raw))
    found = np.empty(len(raw), np.uint8)
    examiner.find_doubtful(values, raw, _list_codes(encoding), found)
    return np.flatnonzero(found)


@cache
def _list_codes(encoding: Encoding) -> ExaminedCodes:
    layout, dtype = _LAYOUTS[encoding.name], _find_block_dtype(encoding)
    mask = np.zeros(encoding.size, np.uint8)
    for name in layout.fields:
        mask.view(dtype)[name].view(np.uint8)[...] = 0xFF
    smallest, largest = layout.slopes
    limits = (
        layout.codes, layout.spacing, layout.levels[-1] if layout.levels else layout.codes - 1,
        _ROUNDED * layout.is_rounded, encoding.block > layout.shared, largest, smallest,
        _LEAST_ERROR, MOST_TIMES, _MOST_ERROR, 1 + _FITTED,
    )  # fmt: skip
    return ExaminedCodes(
        mask=mask,
        lowest=layout.lowest,
        highest=layout.highest,
        beside=np.stack([_NEIGHBORS[-1], _NEIGHBORS[1]]) if layout.levels else None,
        shared=layout.shared,
        scale=cast("_Fields", dtype.fields)["scale"][1],
        has_min=layout.has_min,
        fits_scale=layout.fits_scale,
        fits_min=layout.fits_min,
        limits=np.array(limits, np.float32),
    )


def _find_block_dtype(encoding: Encoding) -> np.dtype[np.void]:
    # All encodings with a layout have a codec of blocks.
    return cast("BlockCodec", definition(encoding)).block_dtype


def _judge_tile(values: F32, raw: U8, encoding: Encoding) -> Judged:
    tile = _BlockTile(values, raw, encoding, _LAYOUTS[encoding.name])
    with np.errstate(all="ignore"):
        return Judged(tile.find_wrong(), tile.find_unusual())


class _BlockTile:
    """Values of the source, (blocks, elements), and the blocks that they may have become.

    The lowest and the highest level, and the step between levels, have shape (blocks, groups): the
    values of a group share a scale.
    """

    def __init__(self, values: F32, raw: U8, encoding: Encoding, layout: CodeLayout) -> None:
        self._values, self._raw, self._layout = values, raw, layout
        self._codec = codec(encoding)
        self._dtype = _find_block_dtype(encoding)
        self._groups = len(values), encoding.block // layout.shared, layout.shared
        self._stored = self._decode(raw)
        self._distance = values - self._stored
        self._low, self._high = (
            self._fill(byte)[:, :: layout.shared] for byte in (layout.lowest, layout.highest)
        )
        if layout.levels:
            self._step = self._high / np.float32(layout.levels[-1])
        else:
            self._step = (self._high - self._low) / np.float32(layout.codes - 1)
        self._scale = np.abs(raw.view(self._dtype)["scale"].reshape(-1).astype(np.float32))

    def _decode(self, raw: U8) -> F32:
        made = np.empty(self._values.shape, np.float32)
        self._codec.decode(raw, made)
        return made

    def _fill(self, byte: int | U8) -> F32:
        """Return the values with all codes replaced: by that of a byte, or by those of a table."""
        filled = self._raw.copy()
        blocks = filled.view(self._dtype)
        for name in self._layout.fields:
            field = blocks[name].view(np.uint8)
            field[...] = byte if isinstance(byte, int) else byte[field]
        return self._decode(filled)

    def _group(self, values: F32) -> F32:
        return values.reshape(self._groups)

    def find_wrong(self) -> Bools:
        """Return the blocks in which no allowed scale gives the codes."""
        layout = self._layout
        found = self._find_not_nearest_of_levels() if layout.levels else self._find_not_nearest()
        doubtful = np.flatnonzero(found)
        if len(doubtful) and (layout.fits_scale or layout.fits_min):
            judge = self._fits_some_range if layout.fits_min else self._fits_some_scale
            found[doubtful] = ~judge(doubtful)
        # No encoder of blocks accepts other values.
        found |= ~np.isfinite(self._distance).all(axis=1)
        return found

    def _find_not_nearest(self) -> Bools:
        """Return the blocks with a code that is not the nearest one at the stored scale."""
        low, high, step = (each[:, :, None] for each in (self._low, self._high, self._step))
        stored, distance = self._group(self._stored), self._group(self._distance)
        # Values beyond the ends of the range have the codes of the ends.
        toward = distance * step
        is_wrong = ((toward < 0) & (stored != low)) | ((toward > 0) & (stored != high))
        limit = np.abs(step) * np.float32(0.5 + _TIE)
        limit = limit + np.maximum(np.abs(low), np.abs(high)) * np.float32(_OPERATIONS)
        limit = limit + self._rounding * (np.abs(stored) + np.abs(step))
        is_wrong &= ~(np.abs(distance) <= limit)
        found: Bools = is_wrong.any(axis=(1, 2))
        return found

    def _find_not_nearest_of_levels(self) -> Bools:
        """Return the same for uneven levels, which are compared with those beside them."""
        stored, distance = self._group(self._stored), self._group(self._distance)
        is_wrong: Bools = np.zeros(stored.shape, bool)
        sign: F32 = np.sign(self._step)[:, :, None]
        limit = np.maximum(np.abs(self._low), np.abs(self._high))[:, :, None] * np.float32(_TIE)
        for by, table in _NEIGHBORS.items():
            beside = self._group(self._fill(table))
            beyond = (distance * 2 + (stored - beside)) * (sign * np.float32(by))
            allowed = np.maximum(limit, self._rounding * (np.abs(stored) + np.abs(beside)))
            # The codes at the ends have one neighbor.
            is_wrong |= (beyond > allowed) & (stored != beside)
        found: Bools = np.any(is_wrong, axis=(1, 2))
        return found

    @property
    def _rounding(self) -> F32:
        """How far scales may be from those that codes were chosen for, (blocks, 1, 1)."""
        if not self._layout.is_rounded:
            return np.zeros((1, 1, 1), np.float32)
        least = np.float32(_LEAST_ROUNDED) / self._scale
        found: F32 = np.maximum(least, np.float32(_ROUNDED))[:, None, None]
        return found

    def _fits_some_scale(self, blocks: NDArray[np.intp]) -> Bools:
        """Return whether, in each block, one multiple of the scale gives all codes."""
        layout, step = self._layout, self._step[blocks]
        wanted, code = self._values[blocks] / step, np.rint(self._stored[blocks] / step)
        least, most = -layout.codes // 2, layout.codes // 2 - 1
        below = np.where(code > least, code - 0.5, -np.inf)
        above = np.where(code < most, code + 0.5, np.inf)
        positive = wanted > 0
        is_zero = (wanted == 0) | (step == 0)
        low = np.where(positive, below, above) / wanted
        high = np.where(positive, above, below) / wanted
        low[is_zero], high[is_zero] = -np.inf, np.inf
        is_impossible = np.any((wanted == 0) & (step != 0) & ((below > 0) | (above < 0)), axis=1)
        # The stored scale, in units of the one that the codes were chosen for.
        least_scale = np.maximum(low.max(axis=1), 1 / (1 + _FITTED))
        most_scale = high.min(axis=1)
        fits: Bools = ~is_impossible & (least_scale <= most_scale * (1 + _TIE))
        return fits

    def _fits_some_range(self, blocks: NDArray[np.intp]) -> Bools:
        """Return whether, in each block, one scale and one min give all codes.

        A code `c` of a value `x` requires `c - 1 / 2 <= s * x - t <= c + 1 / 2`. For a given `s`,
        there is a `t` if each lower bound is at most each upper bound, so each pair limits `s`.
        """
        found = np.empty(len(blocks), bool)
        for first in range(0, len(blocks), _PAIRED):
            some = blocks[first : first + _PAIRED]
            values = self._values[some].astype(np.float64)
            code = np.rint((self._stored[some] - self._low[some]) / self._step[some])
            upper = np.where(code < self._layout.codes - 1, code + 0.5, np.inf)
            lower = np.where(code > 0, code - 0.5, -np.inf)
            room = upper[:, :, None] - lower[:, None, :] + _TIE
            apart = values[:, :, None] - values[:, None, :]
            limit = room / apart
            most = np.where(apart > 0, limit, np.inf).min(axis=(1, 2))
            least = np.where(apart < 0, limit, -np.inf).max(axis=(1, 2))
            is_possible = (least <= most) & (most > 0)
            is_possible &= ~np.any((apart == 0) & (room < 0), axis=(1, 2))
            found[first : first + _PAIRED] = is_possible | (self._step[some] == 0)[:, 0]
        return found

    def find_unusual(self) -> Bools:
        """Return the blocks with a scale that no fit gives, or that lies far from the values."""
        layout = self._layout
        distance, values = self._group(self._distance), self._group(self._values)
        step = np.abs(self._step) * np.float32(layout.spacing)
        # A scale that is stored in a few bits can be rounded by half of the block's scale.
        rounding = self._scale[:, None] * np.float32(self._groups[1] > 1) + _LEAST_ROUNDED
        rounding *= np.float32(layout.spacing)
        least, most = values.min(axis=2), values.max(axis=2)
        magnitude = np.maximum(most, -least)
        if layout.has_min:
            full = (most - np.minimum(least, 0)) / np.float32(layout.codes - 1)
        else:
            full = magnitude / np.float32(layout.codes / 2)
        smallest, largest = layout.slopes
        mean = np.vecdot(distance, distance) / np.float32(layout.shared)
        # A scale or min that is rounded to float16, times a code, can be most of the error.
        offset = magnitude * np.float32(_ROUNDED)
        offset += np.float32(layout.codes * layout.spacing * _LEAST_ROUNDED)
        is_unusual = mean > (step + rounding) ** 2 * np.float32(_LEAST_ERROR) + offset * offset
        is_unusual &= mean > np.float32(MOST_TIMES) * self._find_least_errors()
        is_unusual |= mean > np.float32(_MOST_ERROR) * (full + rounding + offset) ** 2
        is_unusual |= step > full * np.float32(largest) + rounding
        is_unusual |= step < full * np.float32(smallest) - rounding
        is_far = np.abs(self._distance).max(axis=1) > _LEAST_SCALED
        is_lost = self._scale == 0
        found: Bools = (is_lost & is_far) | (~is_lost & is_unusual.any(axis=1))
        return found

    def _find_least_errors(self) -> F32:
        """Return the mean squared errors of groups with the best scale, and min, for the codes."""
        values, stored = (
            self._group(each).astype(np.float64) for each in (self._values, self._stored)
        )
        if self._layout.has_min:
            values -= values.mean(axis=2, keepdims=True)
            stored -= stored.mean(axis=2, keepdims=True)
        found: F32 = (find_rest(values, stored) / self._layout.shared).astype(np.float32)
        return found


def find_rest(values: F64, made: F64) -> F64:
    """Return the squared errors of groups (..., values) with the best scale for what was made."""
    products, squares = np.vecdot(values, made), np.vecdot(made, made)
    rest: F64 = np.vecdot(values, values)
    rest -= np.where(squares > 0, products * products / squares, 0)
    return rest


# Blocks whose values are compared in pairs at a time.
_PAIRED = 256


def _shift_codes(by: int) -> U8:
    """Return, for each byte with two codes, the byte with the codes beside them."""
    code = np.arange(256)
    low, high = (np.clip(each + by, 0, 15) for each in (code & 15, code >> 4))
    shifted: U8 = (low | high << 4).astype(np.uint8)
    return shifted


_NEIGHBORS = {by: _shift_codes(by) for by in (-1, 1)}
