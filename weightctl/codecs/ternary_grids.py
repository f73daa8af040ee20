"""IQ1_S and IQ1_M: values as -1, 0 or 1, shifted by 1/8, at points of a grid, and scales.

256 values are in sub-blocks of 32 (IQ1_S) or 16 (IQ1_M), each with a 3-bit scale. All values of a
sub-block of IQ1_S, or of a half of a sub-block of IQ1_M, are shifted up or down. The levels of
eight values form a point of the grid that both types share.

Arrays of the search have shape (values per sub-block, lanes), with a sub-block in each lane, and
each lane does ggml's float32 operations in ggml's order, as in `scale_search`. A sub-block whose
scale is not a number, for which ggml ends the process, becomes zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from weightctl.codecs.base import BlockCodec
from weightctl.codecs.grids import find_nearest, load_grid, pack_codes
from weightctl.codecs.scale_search import nearest_int, sum_of_squares
from weightctl.errors import EncodingError
from weightctl.kernels.grids import load_levels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32

_AREA = 1 << 15
_Value = TypeVar("_Value", np.int32, np.float32)
_GRID = "IQ1_S"
_ONE = np.float32(1)
_SHIFT = np.float32(0.125)
# The values of levels, shifted up and shifted down.
_VALUES = np.array([[-1, 0, 1], [-1, 0, 1]], np.float32) + np.array([[_SHIFT], [-_SHIFT]])
_LARGEST = np.finfo(np.float32).max


def _compute_weights(rows: F32, importance: F32 | None) -> F32:
    """Return ggml's weights of values (n, 256)."""
    squares = rows * rows
    if importance is None:
        return squares
    mean = np.float32(2) * sum_of_squares(rows)[:, None] / np.float32(256)
    weights: F32 = importance * np.sqrt(mean + squares)
    return weights


class _Split(NamedTuple):
    """How the sorted values of each lane are split: levels 0 before `first`, 2 from `second` on.

    `scale` is the scale of the best split, and `shifts` says which halves of a sub-block are
    shifted down: none, the second, the first, or both. Lanes without a split have `second` -1.
    """

    first: NDArray[np.intp]
    second: NDArray[np.intp]
    scale: F32
    shifts: NDArray[np.intp]


class _Best:
    """The best split of each lane so far."""

    def __init__(self, lanes: int) -> None:
        self._score = np.full(lanes, -_LARGEST)
        self.split = _Split(
            np.full(lanes, -1), np.full(lanes, -1), np.zeros(lanes, np.float32),
            np.zeros(lanes, np.intp),
        )  # fmt: skip

    def consider(self, first: int, second: int, shifts: int, sum_xl: F32, sum_l2: F32) -> None:
        """Replace the best split where the correlation of this one is higher."""
        better = (sum_l2 > 0) & (sum_xl * sum_xl > self._score * sum_l2)
        scale = sum_xl / sum_l2
        np.copyto(self._score, scale * sum_xl, where=better)
        np.copyto(self.split.first, first, where=better)
        np.copyto(self.split.second, second, where=better)
        np.copyto(self.split.scale, scale, where=better)
        np.copyto(self.split.shifts, shifts, where=better)


def _split_whole(order: NDArray[np.intp], x: F32, weights: F32) -> _Split:
    """Return the best split whose halves are both shifted up or both down; ggml's for IQ1_S."""
    best = _Best(x.shape[1])
    sum_x, sum_w = _accumulate(weights * x, order), _accumulate(weights, order)
    for first in range(len(sum_x)):
        for second in range(first, len(sum_x)):
            parts_x, parts_w = (
                (sums[first] - sums[0], sums[second] - sums[first], sums[-1] - sums[second])
                for sums in (sum_x, sum_w)
            )
            for shifts, (low, middle, high) in zip((0, 3), _VALUES, strict=True):
                sum_xl = parts_x[0] * low + parts_x[1] * middle + parts_x[2] * high
                sum_l2 = (
                    parts_w[0] * low * low + parts_w[1] * middle * middle + parts_w[2] * high * high
                )
                best.consider(first, second, shifts, sum_xl, sum_l2)
    return best.split


def _split_halves(order: NDArray[np.intp], x: F32, weights: F32) -> _Split:
    """Return the best split whose halves are shifted up or down; ggml's for IQ1_M."""
    best = _Best(x.shape[1])
    is_second = np.arange(len(x))[:, None] >= len(x) // 2
    halves = [
        (_accumulate(np.where(half, weights * x, 0), order),
         _accumulate(np.where(half, weights, 0), order))
        for half in (~is_second, is_second)
    ]  # fmt: skip
    for first in range(len(x) + 1):
        for second in range(first, len(x) + 1):
            (first_xl, first_l2), (second_xl, second_l2) = (
                _correlate_half(sum_x, sum_w, first, second) for sum_x, sum_w in halves
            )
            for shifts in range(4):
                sum_xl = first_xl[shifts >> 1] + second_xl[shifts & 1]
                sum_l2 = first_l2[shifts >> 1] + second_l2[shifts & 1]
                best.consider(first, second, shifts, sum_xl, sum_l2)
    return best.split


def _correlate_half(sum_x: F32, sum_w: F32, first: int, second: int) -> tuple[list[F32], list[F32]]:
    """Return the sums of a half, shifted up and shifted down, for a split of the sorted values."""
    sums_xl: list[F32] = []
    sums_l2: list[F32] = []
    outside = sum_x[first] + sum_x[second]
    for low, middle, high in _VALUES:
        sums_xl.append(sum_x[-1] * high - outside)
        sums_l2.append(
            sum_w[-1] * high * high
            + sum_w[first] * (low * low - middle * middle)
            + sum_w[second] * (middle * middle - high * high)
        )
    return sums_xl, sums_l2


def _accumulate(terms: F32, order: NDArray[np.intp]) -> F32:
    """Return the sums of the first 0, 1, 2 ... terms in this order, shape (n + 1, lanes)."""
    sums = np.zeros((len(terms) + 1, terms.shape[1]), np.float32)
    np.add.accumulate(np.take_along_axis(terms, order, axis=0), axis=0, out=sums[1:])
    return sums


class _SubBlockFit(NamedTuple):
    """Indices of grid points (n, groups), scales and shifts (n, sub-blocks)."""

    points: NDArray[np.int32]
    scale: F32
    shifts: NDArray[np.intp]


def _fit(rows: F32, weights: F32, length: int, negligible: float) -> _SubBlockFit:
    """Find what to store of blocks of values (n, 256) in sub-blocks of a length."""
    x = np.ascontiguousarray(rows.reshape(-1, length).T)
    lane_weights = np.ascontiguousarray(weights.reshape(-1, length).T)
    order = np.argsort(x, axis=0, kind="stable")
    split_values = _split_whole if length == 32 else _split_halves
    first, second, scale, shifts = split_values(order, x, lane_weights)
    nothing = (np.abs(x).max(axis=0) < np.float32(negligible)) | (second < 0)
    place = np.argsort(order, axis=0, kind="stable")
    level = (place >= first).astype(np.int32) + (place >= second)
    # A negative scale exchanges the outer levels and the shifts.
    is_negative = scale < 0
    level = np.where(is_negative, 2 - level, level)
    shifts = np.where(is_negative, 3 - shifts, shifts)
    index, scale = _place(x, lane_weights, level, np.abs(scale), shifts)
    nothing |= np.isnan(scale)
    index[:, nothing], scale[nothing], shifts[nothing] = 0, 0, 0
    count = len(rows)
    return _SubBlockFit(
        index.T.reshape(count, 32), scale.reshape(count, -1), shifts.reshape(count, -1)
    )


def _place(
    x: F32, weights: F32, level: NDArray[np.int32], scale: F32, shifts: NDArray[np.intp]
) -> tuple[NDArray[np.int32], F32]:
    """Return grid points (groups, lanes) near levels, and the scales that fit these."""
    grid = load_grid(_GRID)
    groups = len(x) // 8

    def by_coordinate(values: NDArray[_Value]) -> NDArray[_Value]:
        return values.reshape(groups, 8, -1).transpose(1, 0, 2).reshape(8, -1)

    code = pack_codes(by_coordinate(level), grid.bits)
    values = _VALUES[_find_shifts(shifts, groups)]  # (groups, lanes, levels)
    scaled = (values * scale[:, None]).reshape(-1, 3).T
    index = find_nearest(grid, code, by_coordinate(x), by_coordinate(weights), scaled)
    index = index.reshape(groups, -1)
    stored = np.take_along_axis(values, grid.levels[index].astype(np.intp), axis=2)
    stored = stored.transpose(0, 2, 1).reshape(x.shape)
    sum_xl, sum_l2 = _correlate(x, weights, stored)
    off_grid = (grid.index_of[code] < 0).reshape(groups, -1).any(axis=0)
    again = off_grid & (sum_xl > 0) & (sum_l2 > 0)
    return index, np.where(again, sum_xl / sum_l2, scale)


def _find_shifts(shifts: NDArray[np.intp], groups: int) -> NDArray[np.intp]:
    """Return which groups (groups, ...) are shifted down: 0 or 1."""
    return np.stack([shifts >> 1 if group == 0 else shifts & 1 for group in range(groups)])


def _correlate(x: F32, weights: F32, values: F32) -> tuple[F32, F32]:
    """Return the weighted sums of values times `x`, and of values squared, of each lane."""
    sum_xl = np.zeros(x.shape[1], np.float32)
    sum_l2 = sum_xl.copy()
    for number, weight, value in zip(x, weights, values, strict=True):
        weighted = weight * value
        sum_xl += weighted * number
        sum_l2 += weighted * value
    return sum_xl, sum_l2


def _round_scales(scale: F32) -> tuple[F32, NDArray[np.int32]]:
    """Return the scales of blocks (n,), and the 3-bit scales of their sub-blocks (n, s)."""
    of_scales: F32 = scale.max(axis=1) / np.float32(15)
    whole = nearest_int(np.float32(0.5) * (_ONE / of_scales[:, None] * scale - _ONE))
    return of_scales, np.clip(whole, 0, 7)


def _encode_s(x: F32, importance: F32 | None, block: NDArray[np.void]) -> None:
    """Fill blocks of IQ1_S: the bytes of ggml's `quantize_iq1_s`."""
    if importance is None:
        raise EncodingError(
            "IQ1_S needs an importance matrix", hint="llama-imatrix makes one from a text"
        )
    rows = x.reshape(-1, 256)
    weights = _compute_weights(rows, np.broadcast_to(importance, x.shape).reshape(-1, 256))
    index, scale, shifts = _fit(rows, weights, 32, 1e-12)
    of_scales, whole = _round_scales(scale)
    high = np.bitwise_or.reduce((index >> 8).reshape(-1, 8, 4) << _THREES, axis=2)
    whole |= np.where(shifts > 0, 8, 0).astype(np.int32)
    whole[of_scales == 0] = 0
    made = np.empty(len(rows), block.dtype)
    made["scale"] = of_scales * np.float32(1.125)
    made["index"] = index & 255
    made["high"] = high | whole << 12
    block[...] = made.reshape(block.shape)


_THREES = np.array([0, 3, 6, 9], np.int32)


def _decode_s(block: NDArray[np.void], out: F32) -> None:
    high = block["high"].reshape(-1, 8).astype(np.int32)
    scale = block["scale"].reshape(-1, 1).astype(np.float32) * (2 * (high >> 12 & 7) + 1)
    _restore(read_points(block), scale.astype(np.float32), (high >> 15)[..., None], out)


def read_points(block: NDArray[np.void]) -> NDArray[np.int32]:
    """Return the indices of grid points of blocks of either type, (n, sub-blocks, groups)."""
    low: NDArray[np.int32] = block["index"].astype(np.int32)
    high = block["high"].astype(np.int32)
    if high.shape[-1] == 8:
        return low.reshape(-1, 8, 4) | (high.reshape(-1, 8, 1) >> _THREES & 7) << 8
    return low.reshape(-1, 16, 2) | (high.reshape(-1, 16, 1) >> _FOURS[:2] & 7) << 8


def _restore(
    index: NDArray[np.int32], scale: F32, shifted_down: NDArray[np.int32], out: F32
) -> None:
    """Fill `out` with values; the shapes are (n, sub-blocks, groups), (n, sub-blocks)."""
    level = load_levels(_GRID)[index]
    shifted = level.astype(np.float32) - _ONE
    shifted += np.where(shifted_down, -_SHIFT, _SHIFT)[..., None]
    shifted *= scale[..., None, None]
    out[...] = shifted.reshape(out.shape)


def _encode_m(x: F32, importance: F32 | None, block: NDArray[np.void]) -> None:
    """Fill blocks of IQ1_M: the bytes of ggml's `quantize_iq1_m`.

    The scale of a block is fitted to the rounded scales of its sub-blocks.
    """
    rows = x.reshape(-1, 256)
    if importance is not None:
        importance = np.broadcast_to(importance, x.shape).reshape(-1, 256)
    weights = _compute_weights(rows, importance)
    index, scale, shifts = _fit(rows, weights, 16, 1e-7)
    of_scales, whole = _round_scales(scale)
    shifted_down = _find_shifts(shifts, 2)  # (2, n, sub-blocks)
    values = _VALUES[shifted_down.transpose(1, 2, 0)]  # (n, sub-blocks, 2, levels)
    values *= (2 * whole + 1).astype(np.float32)[..., None, None]
    level = load_levels(_GRID)[index].reshape(-1, 16, 2, 8).astype(np.intp)
    stored = np.take_along_axis(values, level, axis=3).reshape(-1, 256)
    sum_xl, sum_l2 = _correlate(rows.T, weights.T, stored.T)
    is_zero = of_scales == 0
    of_scales = np.where((sum_l2 > 0) & ~is_zero, sum_xl / sum_l2, of_scales)
    half = (of_scales * np.float32(1.1125)).astype("<f2").view("<u2")
    whole[is_zero] = 0
    shifted_down[:, is_zero] = 0
    made = np.empty(len(rows), block.dtype)
    made["index"] = index & 255
    high = (index >> 8).reshape(-1, 16, 2)
    high |= shifted_down.transpose(1, 2, 0) << 3
    made["high"] = high[..., 0] | high[..., 1] << 4
    words = np.bitwise_or.reduce(whole.reshape(-1, 4, 4) << _THREES, axis=2)
    made["scales"] = words | (half[:, None] >> _FOURS & 15).astype(np.int32) << 12
    block[...] = made.reshape(block.shape)


_FOURS = np.array([0, 4, 8, 12], np.uint16)


def _decode_m(block: NDArray[np.void], out: F32) -> None:
    words = block["scales"].reshape(-1, 4)
    half = np.bitwise_or.reduce(words >> 12 << _FOURS, axis=1).astype("<u2").view("<f2")
    whole = (words[..., None].astype(np.int32) >> _THREES & 7).reshape(-1, 16)
    scale = half.astype(np.float32)[:, None] * (2 * whole + 1).astype(np.float32)
    shifted_down = block["high"].reshape(-1, 16, 1) >> np.array([3, 7]) & 1
    _restore(read_points(block), scale, shifted_down, out)


# ggml's `block_iq1_s`. A word of `high` has for each of four groups the index above eight bits,
# then the scale of the sub-block, and in the top bit whether it is shifted down.
IQ1_S = BlockCodec(
    np.dtype([("scale", "<f2"), ("index", "u1", 32), ("high", "<u2", 8)]),
    256,
    _encode_s,
    _decode_s,
    _AREA,
)
# ggml's `block_iq1_m`. Each four bits of `high` have the index of a group above eight bits, and
# whether the group is shifted down. A word of `scales` has the scales of four sub-blocks, and above
# them four bits of the scale of the block.
IQ1_M = BlockCodec(
    np.dtype([("index", "u1", 32), ("high", "u1", 16), ("scales", "<u2", 4)]),
    256,
    _encode_m,
    _decode_m,
    _AREA,
)
