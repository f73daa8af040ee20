"""Whether groups of levels in the IQ1, IQ2 and IQ3 types are those that ggml's search can choose.

For each scale, and each split of the values in IQ1, that the search considers, the level of a value
does not depend on the importance matrix. If the levels of a group are on the grid, they are stored;
otherwise ggml stores one of the grid points on the list of near ones, and only the choice among
these depends on the importance. So a group can be impossible whatever the importance was.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from weightctl.codecs import codec, definition
from weightctl.codecs.grids import load_grid, pack_codes
from weightctl.codecs.signed_grids import GRID_TYPES, read_points
from weightctl.codecs.ternary_grids import read_points as read_ternary_points
from weightctl.verify.proof.codes import MOST_TIMES, Judged, find_rest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8, BlockCodec
    from weightctl.codecs.signed_grids import GridType
    from weightctl.dtype import Encoding

    Bools = NDArray[np.bool_]
    F64 = NDArray[np.float64]
    I32 = NDArray[np.int32]

# The factors of the best scale for the stored levels at which nearly all groups are possible.
_NEAR = tuple(1 + step / 50 for step in (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6, 8, -8))
_NEAR_SPLITS = sorted(product(range(-3, 4), repeat=2), key=lambda pair: abs(pair[0]) + abs(pair[1]))
_OF_SPLIT = np.array([0, 1, 3], np.int32)  # places of the levels of IQ1
# The relative distance of a value from the limit between two levels at which it can have either.
_TIE = 1e-6
# Blocks that are judged at once, and choices that are examined.
_TOGETHER = 1 << 9
# The limits of the factors between the rounded scale and the fitted one.
_LEAST_FACTOR, _MOST_FACTOR = 0.5, 2.5
# Smaller scales of blocks are rounded by more than that.
_LEAST_SCALE = 2.0**-14


class _Choices:
    """Which points of a grid can be stored for groups of values, whatever their weights are.

    A value is described by its place: by how many of the limits between two levels it is at least
    as large, as each pair of levels has one. A point on the list of near ones is not stored if one
    before it is at least as near in each coordinate: its error is then not larger. What is found is
    kept in a table, because few of the places and points occur.
    """

    def __init__(self, name: str) -> None:
        grid = load_grid(name)
        self.coordinates = grid.levels.shape[1]
        self._grid, self.levels = grid, grid.levels.astype(np.int32)
        self._bits = 16 // self.coordinates
        # The levels of IQ1 are those of a split, which does not say what is nearer.
        self._is_split = name == "IQ1_S"
        # 0 is unknown, 1 is impossible, and 2 is possible.
        self._known = np.zeros((1 << 16, len(grid.levels)), np.uint8)

    def allow(self, places: I32, points: I32) -> Bools:
        """Return whether points (...) can be stored for groups of places (..., coordinates)."""
        code = pack_codes(np.moveaxis(places, -1, 0), self._bits)
        found = self._known[code, points]
        unknown = np.unique((code.astype(np.int64) << 16 | points)[found == 0])
        for first in range(0, len(unknown), _TOGETHER):
            some = unknown[first : first + _TOGETHER]
            self._known[some >> 16, some & 0xFFFF] = 1 + self._find(some >> 16, some & 0xFFFF)
        known: Bools = (self._known[code, points] if len(unknown) else found) == 2
        return known

    def find_points(self, places: I32) -> I32:
        """Return the points with the levels of groups of places, -1 if there is none."""
        levels = np.moveaxis((places + 1) // 2, -1, 0)
        return self._grid.index_of[pack_codes(levels, self._grid.bits)]

    def _find(self, code: NDArray[np.int64], point: NDArray[np.int64]) -> Bools:
        shifts: NDArray[np.int64] = np.arange(0, 16, self._bits, dtype=np.int64)
        place = (code[:, None] >> shifts & (1 << self._bits) - 1).astype(np.int32)
        own = pack_codes(((place + 1) // 2).T, self._grid.bits)
        found: Bools = self._grid.index_of[own] == point
        length = self._grid.length[own]
        starts = np.cumsum(length) - length
        lane = np.repeat(np.arange(len(own)), length)
        near = self._grid.near[np.arange(len(lane)) + (self._grid.first[own] - starts)[lane]]
        is_own, number = near == point[lane], np.arange(len(lane))
        last = np.full(len(own), -1)
        last[lane[is_own]] = number[is_own]
        found |= last >= 0
        is_before = number < last[lane]
        lane, near = lane[is_before], near[is_before]
        if self._is_split or not len(lane):
            return found
        mine, other = self.levels[point[lane]], self.levels[near]
        is_nearer = (mine == other) | ((place[lane] >= mine + other) == (other > mine))
        found[lane[is_nearer.all(axis=1)]] = False
        return found


_load_choices = cache(_Choices)


def has_grid(encoding: Encoding) -> bool:
    """Whether `judge_grids` knows an encoding."""
    return encoding.name in GRID_TYPES or encoding.name in {"IQ1_S", "IQ1_M"}


def judge_grids(values: F32, raw: U8, encoding: Encoding) -> Judged:
    """Judge blocks of an encoding with a grid, as `judge_blocks` does.

    A block is wrong if no importance gives the points or the scale of a sub-block. It is unusual
    if a scale is far from the best one for the levels, or if values that the encoder does not see,
    or that are 0, explain why it is wrong.
    """
    found = Judged(np.empty(len(raw), bool), np.empty(len(raw), bool))
    for first in range(0, len(raw), _TOGETHER):
        some = slice(first, first + _TOGETHER)
        with np.errstate(all="ignore"):
            found.wrong[some], found.unusual[some] = _judge_tile(values[some], raw[some], encoding)
    return found


def _judge_tile(values: F32, raw: U8, encoding: Encoding) -> Judged:
    # All encodings with a grid have a codec of blocks.
    block = raw.view(cast("BlockCodec", definition(encoding)).block_dtype).reshape(-1)
    kind, count = GRID_TYPES.get(encoding.name), len(raw)
    choices = _load_choices("IQ1_S" if kind is None else encoding.name)
    made = np.empty(values.shape, np.float32)
    codec(encoding).decode(raw, made)
    length = kind.length if kind is not None else 32 if encoding.name == "IQ1_S" else 16
    own = values.reshape(-1, length)
    made = made.reshape(own.shape)
    # ggml stores zeros, and in IQ3_S moves what follows, where all values or all weights are 0.
    is_doubtful = ~(own.any(axis=1) & np.isfinite(own).all(axis=1))
    is_doubtful |= np.abs(made).max(axis=1) < _LEAST_SCALE
    if kind is None:
        points = read_ternary_points(block).reshape(len(own), -1)
        is_wrong = ~_has_split(choices, points, own.astype(np.float64))
    else:
        points, negative, scales = read_points(encoding.name, block)
        points = points.reshape(len(own), -1)
        magnitude = np.where(negative, -values, values).reshape(own.shape).astype(np.float64)
        is_wrong = ~_has_scale(kind, choices, points, magnitude, np.abs(made))
        is_wrong |= ~_fits_scale(own, made, scales.reshape(-1) == 0)
        others = np.sum((negative == (values >= 0)).reshape(len(own), -1, 8), axis=2)
        is_wrong |= (others > (not kind.has_all_signs)).any(axis=1)
        # If a fitted scale is negative, the scale and all signs are changed.
        is_doubtful |= (others >= 7).all(axis=1) & (not kind.has_all_signs)
        # The largest scale of a block is always stored as the largest number.
        is_wrong |= np.repeat((scales.max(axis=1) != 15) & (block["scale"] != 0), len(own) // count)
    is_doubtful |= ~points.any(axis=1)

    def of_blocks(found: Bools) -> Bools:
        return np.logical_or.reduceat(found, np.arange(0, len(own), len(own) // count))

    wrong, doubtful = of_blocks(is_wrong), of_blocks(is_doubtful)
    return Judged(wrong & ~doubtful, of_blocks(_is_far(own, made)) | (wrong & doubtful))


def _has_scale(kind: GridType, choices: _Choices, points: I32, values: F64, made: F32) -> Bools:
    """Return whether some scales give the points (n, groups) of sub-blocks."""
    found = np.zeros(len(values), bool)
    odd = 2 * choices.levels[points].reshape(values.shape) + 1
    shape = -1, points.shape[1], choices.coordinates
    left = np.arange(len(values))
    # The stored scale has been fitted to the levels with the importance, and then rounded.
    guesses: list[F32 | F64] = [made, values]
    for fitted, factor in product(guesses, _NEAR):
        if not len(left):
            break
        scale = np.vecdot(fitted[left], odd[left]) / np.vecdot(odd[left], odd[left]) * factor
        places, _ = _find_places(kind, values[left] / scale[:, None])
        found[left] = choices.allow(places.reshape(shape), points[left]).all(axis=1)
        left = left[~found[left]]
    if len(left):
        found[left] = _search(kind, choices, values[left], points[left])
    return found


def _search(kind: GridType, choices: _Choices, values: F64, points: I32) -> Bools:
    """Return the same, after a search of all scales."""
    shape = -1, points.shape[1], choices.coordinates
    # Groups are bits.
    every = (1 << points.shape[1]) - 1
    # For each scale that is tried first, the groups that must be possible at the fitted scale.
    tried = [np.full(len(values), every, np.uint8)]
    peak = values.max(axis=1, keepdims=True)
    most = 2 * len(kind.values) - 1
    steps = () if kind.refitted == "always" else range(-kind.steps, kind.steps + 1)
    for step in steps:
        for places, is_open in _list_places(kind, values * ((most + step * kind.step) / peak)):
            index = choices.find_points(places.reshape(shape))
            index = np.where(is_open.reshape(shape).any(axis=2), points, index)
            rest = np.packbits(index < 0, axis=1, bitorder="little")[:, 0]
            if kind.refitted == "all":
                rest[rest > 0] = every
            rest[((index >= 0) & (index != points)).any(axis=1)] = every
            tried.append(rest)
    needed = np.array(tried)
    found: Bools = np.any(needed == 0, axis=0)
    if kind.refitted == "all":
        needed = needed[:1]
    left = np.flatnonzero(~found)
    # The places at all scales are those beside a scale at which a value is at a limit.
    for column, limit in product(range(values.shape[1]), range(2, 2 * len(kind.values) - 1)):
        if not len(left):
            break
        some, of = values[left], points[left]
        scale = some[:, column] / limit
        scale[~(scale > 0)] = np.nan
        possible = np.zeros(len(left), bool)
        for places, is_open in _list_places(kind, some / scale[:, None]):
            other = ~choices.allow(places.reshape(shape), of)
            other &= ~is_open.reshape(shape).any(axis=2)
            missing = np.packbits(other, axis=1, bitorder="little")[:, 0]
            possible |= np.any(needed[:, left] & missing == 0, axis=0)
        found[left] = possible & ~np.isnan(scale)
        left = left[~found[left]]
    return found


def _find_places(kind: GridType, quotients: F64) -> tuple[I32, I32]:
    """Return the places of quotients, and which limit they are at, 0 if at none.

    Those at a limit are below it here, and can be above it too.
    """
    most = 2 * len(kind.values) - 2
    limit = np.rint(quotients)
    is_tie = (np.abs(quotients - limit) <= _TIE * limit) & (limit >= 2) & (limit <= most)
    whole = np.clip(np.nan_to_num(np.floor(quotients)), 1, most)
    places = np.where(is_tie, limit - 2, whole - 1).astype(np.int32)
    return places, np.where(is_tie, limit, 0).astype(np.int32)


def _list_places(kind: GridType, quotients: F64) -> Iterator[tuple[I32, Bools]]:
    """Yield the places of quotients, and which of these are open: below or above a limit.

    Rounding errors of a quotient depend on its value, so those at the same limit are alike. For two
    limits, all four ways are yielded; if values of a sub-block are at more, these are open.
    """
    places, limit = _find_places(kind, quotients)
    is_tie = limit > 0
    is_most = is_tie & (limit == limit.max(axis=1, keepdims=True))
    rest = np.where(is_tie & ~is_most, limit, 0)
    is_third = (rest > 0) & (rest != rest.max(axis=1, keepdims=True))
    is_open = is_tie & is_third.any(axis=1, keepdims=True)
    yield places, is_open
    if is_tie.any():
        yield places + is_tie, is_open
    if rest.any():
        yield places + is_most, is_open
        yield places + (rest > 0), is_open


def _has_split(choices: _Choices, points: I32, values: F64) -> Bools:
    """Return whether a split of the values gives the points (n, groups) of sub-blocks of IQ1.

    The values are sorted, and split into the levels, in either direction. ggml's builds sort equal
    values in different ways; all are tried for two of them, and more are not judged.
    """
    size, in_order = values.shape[1], np.sort(values, axis=1)
    found: Bools = np.any(in_order[:, 2:] == in_order[:, :-2], axis=1)
    stored = choices.levels[points].reshape(values.shape)
    order = np.argsort(values, axis=1, kind="stable")
    other = size - 1 - np.argsort(values[:, ::-1], axis=1, kind="stable")
    ways = [*product((np.argsort(order, axis=1), np.argsort(other, axis=1)), (False, True))]

    def try_split(place: NDArray[np.intp], turned: bool, first: Any, second: Any) -> None:
        left = np.flatnonzero(~found)
        if not len(left):
            return
        first, second = (each[left, None] if np.ndim(each) else each for each in (first, second))
        level = (place[left] >= first).astype(np.int32) + (place[left] >= second)
        level = _OF_SPLIT[2 - level if turned else level]
        groups = level.reshape(len(left), -1, choices.coordinates)
        found[left] = choices.allow(groups, points[left]).all(axis=1)

    for place, turned in ways:
        # Most splits are near those of the stored levels.
        ends = [np.count_nonzero(stored == level, axis=1) for level in (0, 2)]
        first, second = (ends[turned], size - ends[not turned])
        for one, two in _NEAR_SPLITS:
            try_split(place, turned, first + one, second + two)
    for place, turned in ways:
        for first in range(size + 1):
            for second in range(first, size + 1):
                try_split(place, turned, first, second)
    return found


def _fits_scale(values: F32, made: F32, is_least: Bools) -> Bools:
    """Return whether the scales of sub-blocks (n, values) can be fitted to the levels.

    The factors of some values are then above it, and those of others are below it. It is rounded by
    at most a half of the least scale, and that one can be rounded up from 0.
    """
    factor = values / made
    factor[made == 0] = 1
    most = factor.max(axis=1)
    found: Bools = (factor.min(axis=1) <= _MOST_FACTOR) & (most > 0)
    found &= (most >= _LEAST_FACTOR) | is_least
    return found


def _is_far(values: F32, made: F32) -> Bools:
    """Return whether the scales of sub-blocks (n, values) are far from the best for the levels."""
    distance = values - made
    rest = find_rest(values.astype(np.float64), made.astype(np.float64))
    found: Bools = np.vecdot(distance, distance) > MOST_TIMES * rest
    return found
