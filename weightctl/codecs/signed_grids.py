"""IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S: magnitudes at points of a grid, signs, and scales.

256 values are in sub-blocks of 16 or 32, each with a 4-bit scale. The magnitudes of a sub-block are
groups of 8 (IQ2) or 4 (IQ3) levels; each group is a point of the type's grid. IQ2_XXS, IQ2_XS
and IQ3_XXS store seven of eight signs, because the number of negative values among eight is always
even: if it is odd for the numbers, the sign of the least important one is changed.

Arrays of the search have shape (values per sub-block, lanes), with a sub-block in each lane, and
each lane does ggml's float32 operations in ggml's order, as in `scale_search`. A sub-block whose
scale is not a number, for which ggml ends the process, becomes zeros.

The bytes of IQ3_S deliberately differ from ggml's in blocks where a sub-block of zeros is followed
by other values: ggml stores the levels and signs of what follows in the wrong place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from weightctl.codecs.base import BlockCodec
from weightctl.codecs.grids import find_nearest, load_grid, pack_codes
from weightctl.codecs.scale_search import (
    NEGLIGIBLE,
    fit_unsigned_scale,
    nearest_int,
    sum_of_squares,
)
from weightctl.errors import EncodingError
from weightctl.kernels.grids import load_levels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

# Values at a time.
_AREA = 1 << 15
_ONE = np.float32(1)
_Value = TypeVar("_Value", np.int32, np.float32)


class GridType(NamedTuple):
    """A type, and how ggml searches for its blocks.

    Sub-blocks have `length` values. The search tries the inverse scales `(most + step * i) / peak`
    for i from -`steps` to `steps`, where `most` is the largest level times two plus one; with
    `fits_first`, `peak` is the value of this level at a scale that was fitted without the grid.
    Then groups are `refitted` with the scale that was found: those that were not on the grid, all
    of them if any was not, or always all.

    The weight of a value grows with its square plus `share` times the mean square of its block.
    Without importance, it is its square, plus `unweighted` times the same. It cannot be without if
    it `needs_importance`. `fudge` multiplies the scale of a block. A decoded magnitude is an entry
    of `values` times `unit`, the scale of the block, and the scale of the sub-block plus 1/2.
    """

    name: str
    length: int
    step: float
    steps: int
    values: tuple[int, ...]
    unit: float
    refitted: str = "those"
    share: float = 2.0
    unweighted: float = 0.0
    negligible: np.float32 = NEGLIGIBLE
    fudge: float = 1.0
    fits_first: bool = False
    has_all_signs: bool = False
    needs_importance: bool = False


class _Levels(NamedTuple):
    """Indices of grid points (n, groups), signs as bits (n, 32), and scales (n, sub-blocks)."""

    points: NDArray[np.int32]
    signs: U8
    scale: NDArray[np.int32]


_MAGNITUDES = (8, 25, 43)
GRID_TYPES = {
    kind.name: kind
    for kind in (
        GridType("IQ2_XXS", 32, 0.1, 6, _MAGNITUDES, 0.25, "always", 1.0,
              fits_first=True, needs_importance=True),
        GridType("IQ2_XS", 16, 0.1, 9, _MAGNITUDES, 0.25, share=1.0, needs_importance=True),
        GridType("IQ2_S", 16, 0.1, 9, _MAGNITUDES, 0.25, unweighted=0.25, fudge=0.9875,
              negligible=np.float32(1e-8), has_all_signs=True),
        GridType("IQ3_XXS", 32, 0.2, 15, (4, 12, 20, 28, 36, 44, 52, 62), 0.5,
              negligible=np.float32(1e-8), fudge=1.0125),
        GridType("IQ3_S", 32, 0.2, 9, tuple(range(1, 16, 2)), 2.0, "all",
              negligible=np.float32(1e-45), fudge=1.033, has_all_signs=True),
    )
}  # fmt: skip


def _fit(kind: GridType, rows: F32, importance: F32 | None, block: NDArray[np.void]) -> _Levels:
    """Store the scales of blocks (n,) of values (n, 256), and return what else they contain."""
    if importance is None and kind.needs_importance:
        raise EncodingError(
            f"{kind.name} needs an importance matrix",
            hint="llama-imatrix makes one from a text; or choose a type that does not need one, "
            "such as IQ2_S or Q2_K",
        )
    mean: F32 = np.float32(kind.share) * sum_of_squares(rows)[:, None] / np.float32(256)
    squares = rows * rows
    if importance is not None:
        weights = importance * np.sqrt(mean + squares)
    elif kind.unweighted:
        weights = np.float32(kind.unweighted) * mean + squares
    else:
        weights = squares
    index, signs, scales = _search(kind, _arrange(rows, kind), _arrange(weights, kind))
    scales = scales.reshape(len(rows), -1)
    most = scales.max(axis=1, keepdims=True)
    of_scales: F32 = most / np.float32(31)
    block["scale"] = (of_scales * np.float32(kind.fudge))[:, 0]
    whole = nearest_int(np.float32(0.5) * (_ONE / of_scales * scales - _ONE))
    index, signs = index.T.reshape(len(rows), -1), signs.T.reshape(len(rows), -1)
    if not kind.has_all_signs:
        signs &= 127
        index[most[:, 0] == 0] = 0
        signs[most[:, 0] == 0] = 0
    return _Levels(index, signs, np.clip(whole, 0, 15))


def _arrange(rows: F32, kind: GridType) -> F32:
    """Return values (n, 256) with a sub-block in each lane; those of a block are adjacent."""
    return np.ascontiguousarray(rows.reshape(-1, kind.length).T)


def _search(kind: GridType, x: F32, weights: F32) -> tuple[NDArray[np.int32], U8, F32]:
    """Return grid points (groups, lanes), signs (eights, lanes), and scales (lanes,)."""
    signed = _split_signs(x, weights, flips=not kind.has_all_signs)
    group = _Groups(kind, signed.magnitude, weights)
    peak: F32 = signed.magnitude.max(axis=0)
    nothing = peak < kind.negligible
    most = np.float32(2 * len(kind.values) - 1)
    scale: F32 = peak / most
    if kind.fits_first:
        _, scale = fit_unsigned_scale(signed.magnitude, weights, len(kind.values) + 1)
        peak = scale * np.float32(len(kind.values))
        nothing |= peak <= 0
    shape = group.shape
    index, on_grid = np.zeros(shape, np.int32), np.full(shape, kind.refitted == "those")
    best = np.zeros_like(scale)
    for i in range(-kind.steps, kind.steps + 1):
        inverse: F32 = (most + np.float32(i) * np.float32(kind.step)) / peak
        found, was_on_grid = group.find_points(inverse, _ONE / inverse)
        sum_xl, sum_l2 = group.correlate(found)
        better = (sum_l2 > 0) & (sum_xl * sum_xl > best * sum_l2)
        scale = np.where(better, sum_xl / sum_l2, scale)
        best = np.where(better, scale * sum_xl, best)
        np.copyto(index, found, where=better)
        np.copyto(on_grid, was_on_grid, where=better)

    again = (scale > 0) & ~on_grid
    if kind.refitted != "those":
        again = (scale > 0) & (kind.refitted == "always" or (~on_grid).any(axis=0))
        again = np.broadcast_to(again, shape)
    found, _ = group.find_points(_ONE / scale, scale)
    np.copyto(index, found, where=again)
    sum_xl, sum_l2 = group.correlate(index)
    scale = np.where(again.any(axis=0) & (sum_l2 > 0), sum_xl / sum_l2, scale)

    signs = np.where(scale < 0, ~signed.signs, signed.signs)
    nothing |= np.isnan(scale)
    index[:, nothing], signs[:, nothing] = 0, 0
    return index, signs, np.where(nothing, np.float32(0), np.abs(scale))


class _Signed(NamedTuple):
    """Values whose sign is stored: their magnitudes (n, lanes), and signs as bits (n / 8, lanes).

    A magnitude is negative if the stored sign is not that of the value.
    """

    magnitude: F32
    signs: U8


def _split_signs(x: F32, weights: F32, *, flips: bool) -> _Signed:
    """Return magnitudes and signs; with `flips`, the number of negative signs is even."""
    negative = ~(x >= 0)
    eights = negative.reshape(-1, 8, x.shape[1])
    if flips:
        cost = (weights * x * x).reshape(eights.shape)
        least, place = cost[:, 0].copy(), np.zeros(cost[:, 0].shape, np.intp)
        for i in range(1, 8):
            less = cost[:, i] < least
            np.copyto(least, cost[:, i], where=less)
            place[less] = i
        odd = np.logical_xor.reduce(eights, axis=1)
        flipped = (np.arange(8)[:, None] == place[:, None]) & odd[:, None]
        stored = eights ^ flipped
    else:
        stored = eights
    magnitude = np.where(stored.reshape(x.shape), -x, x)
    return _Signed(magnitude, np.packbits(stored, axis=1, bitorder="little")[:, 0])


class _Groups:
    """The groups of levels of sub-blocks, and their grid."""

    def __init__(self, kind: GridType, magnitude: F32, weights: F32) -> None:
        self._grid = load_grid(kind.name)
        self._most = len(kind.values) - 1
        self._coordinates = self._grid.levels.shape[1]
        self._x, self._weights = magnitude, weights
        self._weighted = weights * magnitude
        self.shape: tuple[int, int] = len(magnitude) // self._coordinates, magnitude.shape[1]
        self._points = self._by_coordinate(magnitude)
        self._roots = self._by_coordinate(np.sqrt(weights))
        self._odd = (2 * self._grid.levels + 1).astype(np.float32)

    def _by_coordinate(self, values: NDArray[_Value]) -> NDArray[_Value]:
        grouped = values.reshape(self.shape[0], self._coordinates, -1).transpose(1, 0, 2)
        return grouped.reshape(self._coordinates, -1)

    def find_points(self, inverse: F32, scale: F32) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the grid points for a scale of each lane, and whether levels were on the grid."""
        level = nearest_int(np.float32(0.5) * (inverse * self._x - _ONE))
        np.clip(level, 0, self._most, out=level)
        code = pack_codes(self._by_coordinate(level), self._grid.bits)
        values = np.arange(1, 2 * self._most + 2, 2, dtype=np.float32)[:, None] * scale
        values = np.tile(values, (1, self.shape[0]))
        found = find_nearest(self._grid, code, self._points, self._roots, values)
        return found.reshape(self.shape), (self._grid.index_of[code] >= 0).reshape(self.shape)

    def correlate(self, index: NDArray[np.int32]) -> tuple[F32, F32]:
        """Return the weighted sums of odd levels times values, and of odd levels squared."""
        odd = self._odd[index].transpose(0, 2, 1).reshape(self._x.shape)
        sum_xl = np.zeros(self.shape[1], np.float32)
        sum_l2 = sum_xl.copy()
        for weighted, weight, level in zip(self._weighted, self._weights, odd, strict=True):
            sum_xl += weighted * level
            sum_l2 += weight * level * level
        return sum_xl, sum_l2


class StoredPoints(NamedTuple):
    """The grid points of blocks (n, groups), negative values (n, 256), and scales of sub-blocks."""

    points: NDArray[np.int32]
    negative: NDArray[np.bool_]
    scale: NDArray[np.int32]


_UNPACK: dict[str, Callable[[NDArray[np.void]], _Levels]] = {}


def read_points(name: str, block: NDArray[np.void]) -> StoredPoints:
    """Return what blocks (n,) of a type store."""
    index, signs, whole = _UNPACK[name](block)
    if not GRID_TYPES[name].has_all_signs:
        bits = (signs & 127)[..., None] >> np.arange(7, dtype=np.uint8) & 1
        eighth = np.bitwise_xor.reduce(bits, axis=2) << 7
        signs = ((signs & 127) | eighth).astype(np.uint8)
    negative = np.unpackbits(signs, axis=1, bitorder="little").view(np.bool_)
    return StoredPoints(index, negative, whole)


def _build_codec(
    name: str,
    fields: Sequence[tuple[str, str, int] | tuple[str, np.dtype[np.void], int]],
    pack: Callable[[_Levels, NDArray[np.void]], None],
    unpack: Callable[[NDArray[np.void]], _Levels],
) -> BlockCodec:
    """Return the codec of a type.

    `pack` stores levels in blocks of shape (n,), and `unpack` returns them; seven bits of signs are
    enough if the type stores seven.
    """
    kind, block_dtype = GRID_TYPES[name], np.dtype([("scale", "<f2"), *fields])
    _UNPACK[name] = unpack

    def encode(x: F32, importance: F32 | None, block: NDArray[np.void]) -> None:
        made = np.zeros(block.size, block_dtype)
        if importance is not None:
            importance = np.broadcast_to(importance, x.shape).reshape(-1, 256)
        pack(_fit(kind, x.reshape(-1, 256), importance, made), made)
        block[...] = made.reshape(block.shape)

    def decode(block: NDArray[np.void], out: F32) -> None:
        index, negative, whole = read_points(name, block.reshape(-1))
        values = np.array(kind.values, np.float32)[load_levels(name)][index].reshape(-1, 256)
        np.negative(values, out=values, where=negative)
        scale = block["scale"].reshape(-1, 1).astype(np.float32) * np.float32(kind.unit)
        scale = scale * (whole.astype(np.float32) + np.float32(0.5))
        values.reshape(len(scale), -1, kind.length)[...] *= scale[..., None]
        out[...] = values.reshape(out.shape)

    return BlockCodec(block_dtype, 256, encode, decode, _AREA)


_SEVENS = np.array([0, 7, 14, 21], np.uint32)


def _pack_sevens(levels: _Levels) -> NDArray[np.uint32]:
    """Return words (n, 8) with seven signs of each of four eights, and the scale above them."""
    signs = levels.signs.reshape(-1, 8, 4).astype(np.uint32) << _SEVENS
    words: NDArray[np.uint32] = np.bitwise_or.reduce(signs, axis=2)
    words |= levels.scale.astype(np.uint32) << 28
    return words


def _unpack_sevens(index: NDArray[np.int32], words: NDArray[np.uint32]) -> _Levels:
    signs = (words[..., None] >> _SEVENS & 127).astype(np.uint8)
    return _Levels(index, signs.reshape(-1, 32), (words >> 28).astype(np.int32))


def _pack_scales(levels: _Levels) -> U8:
    """Return bytes of 4-bit scales in pairs, the first lower."""
    return (levels.scale[:, ::2] | levels.scale[:, 1::2] << 4).astype(np.uint8)


def _unpack_scales(stored: U8) -> NDArray[np.int32]:
    scales = np.stack([stored & 15, stored >> 4], axis=-1).reshape(len(stored), -1)
    return scales.astype(np.int32)


def _pack_high(index: NDArray[np.int32], bits: int) -> U8:
    """Return bytes that have the bits of indices above the eighth, the first lowest."""
    each = (index >> 8).reshape(len(index), -1, 8 // bits) << np.arange(0, 8, bits)
    high: U8 = np.bitwise_or.reduce(each, axis=2).astype(np.uint8)
    return high


def _unpack_high(low: U8, high: U8, bits: int) -> NDArray[np.int32]:
    each = high[..., None].astype(np.int32) >> np.arange(0, 8, bits) & (1 << bits) - 1
    return low.astype(np.int32) | each.reshape(low.shape) << 8


def _pack_iq2_xxs(levels: _Levels, block: NDArray[np.void]) -> None:
    block["words"]["index"] = levels.points.reshape(-1, 8, 4)
    block["words"]["signs"] = _pack_sevens(levels)


def _unpack_iq2_xxs(block: NDArray[np.void]) -> _Levels:
    index = block["words"]["index"].reshape(-1, 32).astype(np.int32)
    return _unpack_sevens(index, block["words"]["signs"])


def _pack_iq2_xs(levels: _Levels, block: NDArray[np.void]) -> None:
    block["words"] = levels.points | levels.signs.astype(np.int32) << 9
    block["scales"] = _pack_scales(levels)


def _unpack_iq2_xs(block: NDArray[np.void]) -> _Levels:
    words = block["words"].astype(np.int32)
    return _Levels(words & 511, (words >> 9).astype(np.uint8), _unpack_scales(block["scales"]))


def _pack_iq3_xxs(levels: _Levels, block: NDArray[np.void]) -> None:
    block["index"], block["signs"] = levels.points, _pack_sevens(levels)


def _unpack_iq3_xxs(block: NDArray[np.void]) -> _Levels:
    return _unpack_sevens(block["index"].astype(np.int32), block["signs"])


def _pack_with_high(bits: int) -> Callable[[_Levels, NDArray[np.void]], None]:
    """Return a function that packs levels whose indices have `bits` more than eight bits."""

    def pack(levels: _Levels, block: NDArray[np.void]) -> None:
        block["index"] = levels.points & 255
        block["high"] = _pack_high(levels.points, bits)
        block["signs"], block["scales"] = levels.signs, _pack_scales(levels)

    return pack


def _unpack_with_high(bits: int) -> Callable[[NDArray[np.void]], _Levels]:
    def unpack(block: NDArray[np.void]) -> _Levels:
        index = _unpack_high(block["index"], block["high"], bits)
        return _Levels(index, block["signs"], _unpack_scales(block["scales"]))

    return unpack


# ggml's `block_iq2_xxs`: for each sub-block the indices of four groups, and `_pack_sevens`.
_WORDS = np.dtype([("index", "u1", 4), ("signs", "<u4")])
IQ2_XXS = _build_codec("IQ2_XXS", [("words", _WORDS, 8)], _pack_iq2_xxs, _unpack_iq2_xxs)
# ggml's `block_iq2_xs`: an index in nine bits, and seven signs above it, for each group.
IQ2_XS = _build_codec(
    "IQ2_XS", [("words", "<u2", 32), ("scales", "u1", 8)], _pack_iq2_xs, _unpack_iq2_xs
)
# ggml's `block_iq2_s`: indices have ten bits.
IQ2_S = _build_codec(
    "IQ2_S",
    [("index", "u1", 32), ("signs", "u1", 32), ("high", "u1", 8), ("scales", "u1", 8)],
    _pack_with_high(2),
    _unpack_with_high(2),
)
# ggml's `block_iq3_xxs`.
IQ3_XXS = _build_codec(
    "IQ3_XXS", [("index", "u1", 64), ("signs", "<u4", 8)], _pack_iq3_xxs, _unpack_iq3_xxs
)
# ggml's `block_iq3_s`: indices have nine bits.
IQ3_S = _build_codec(
    "IQ3_S",
    [("index", "u1", 64), ("high", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)],
    _pack_with_high(1),
    _unpack_with_high(1),
)
