"""Grids: the groups of levels that the IQ1, IQ2 and IQ3 types can store, and the search in them.

A group is a point with 4 or 8 coordinates, its levels. Its code has the levels in 3 or 2 bits each,
the first lowest. Only points of the grid can be stored, by their index. For each other point the
grid has a list of near grid points: all those at the smallest few distances, the nearest first.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.kernels.grids import DISTANCES, load_levels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

_LARGEST = np.finfo(np.float32).max
# Points that are listed, and near points that are compared, at a time.
_LISTED = 512
_COMPARED = 1 << 17


class LevelGrid(NamedTuple):
    """A grid, with levels of shape (count, coordinates).

    `index_of` has the index of the grid point for each code, -1 if it is not one. The list of near
    grid points of code c is `near[first[c] : first[c] + length[c]]`.
    """

    levels: U8
    bits: int
    index_of: NDArray[np.int32]
    first: NDArray[np.int64]
    length: NDArray[np.int64]
    near: NDArray[np.uint16]


def find_nearest(
    grid: LevelGrid, code: NDArray[np.int32], x: F32, weights: F32, values: F32
) -> NDArray[np.int32]:
    """Return the index of the grid point for each code, shape (n,).

    If the code is not on the grid, it is the point of its list with the least weighted square
    error. `x` and `weights` have shape (coordinates, n); `values` has the values of the levels,
    shape (levels, n). Of equal points, the first is used; errors that are not finite are equal.
    """
    found = grid.index_of[code]
    lanes = np.flatnonzero(found < 0)
    ends = np.cumsum(grid.length[code[lanes]])
    if not len(ends):
        return found
    limits = np.arange(_COMPARED, int(ends[-1]), _COMPARED)
    for part in np.split(lanes, np.searchsorted(ends, limits)):
        found[part] = _search(grid, code[part], x[:, part], weights[:, part], values[:, part])
    return found


def _search(
    grid: LevelGrid, code: NDArray[np.int32], x: F32, weights: F32, values: F32
) -> NDArray[np.uint16]:
    difference: F32 = values - x[:, None]
    terms = weights[:, None] * difference * difference  # (coordinates, levels, n)
    length = grid.length[code]
    starts = np.cumsum(length) - length
    lane = np.repeat(np.arange(len(code)), length)
    near = grid.near[np.arange(len(lane)) + (grid.first[code] - starts)[lane]]
    error = np.zeros(len(lane), np.float32)
    for term, level in zip(terms, grid.levels.T, strict=True):
        error += term[level[near], lane]
    error[~(error < _LARGEST)] = _LARGEST
    places = np.flatnonzero(error == np.minimum.reduceat(error, starts)[lane])
    _, which = np.unique(lane[places], return_index=True)
    found: NDArray[np.uint16] = near[places[which]]
    return found


@cache
def load_grid(name: str) -> LevelGrid:
    """Return the grid of a type."""
    levels = load_levels(name)
    count, coordinates = levels.shape
    bits = 2 if coordinates == 8 else 3
    most = int(levels.max())
    points = np.indices((most + 1,) * coordinates, np.int32).reshape(coordinates, -1)
    index = np.full(1 << bits * coordinates, -1, np.int32)
    index[pack_codes(levels.T.astype(np.int32), bits)] = np.arange(count)
    others = points[:, index[pack_codes(points, bits)] < 0]
    parts = np.array_split(others, -(-others.shape[1] // _LISTED), axis=1)
    listed = [_list_near(part, levels, DISTANCES[name]) for part in parts]
    lengths = np.concatenate([length for length, _ in listed])
    codes = pack_codes(others, bits)
    first, length = np.zeros(len(index), np.int64), np.zeros(len(index), np.int64)
    first[codes], length[codes] = np.cumsum(lengths) - lengths, lengths
    return LevelGrid(
        levels, bits, index, first, length, np.concatenate([near for _, near in listed])
    )


def _list_near(
    points: NDArray[np.int32], levels: U8, distances: int
) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """Return the lengths of the lists for points (coordinates, n), and the lists in a row."""
    # Squared distances, which float32 has exactly.
    there, here = levels.astype(np.float32), points.T.astype(np.float32)
    squares = (here**2).sum(axis=1)[:, None] + (there**2).sum(axis=1) - 2 * (here @ there.T)
    order = np.argsort(squares.astype(np.uint8), axis=1, kind="stable")
    sorted_squares = np.take_along_axis(squares, order, axis=1)
    new = np.diff(sorted_squares, axis=1, prepend=sorted_squares[:, :1]) > 0
    listed = np.cumsum(new, axis=1) < distances
    return np.count_nonzero(listed, axis=1), order[listed].astype(np.uint16)


def pack_codes(levels: NDArray[np.int32], bits: int) -> NDArray[np.int32]:
    """Return the codes (...) of levels (coordinates, ...)."""
    code: NDArray[np.int32] = levels[0].copy()
    for i, level in enumerate(levels[1:], start=1):
        code |= level << bits * i
    return code
