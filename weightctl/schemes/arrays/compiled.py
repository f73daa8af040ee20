"""Rounding and packing by compiled kernels, which give the same bytes as NumPy does."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.kernels import block_rounder
from weightctl.schemes.arrays.rounding import Codes, reduce_blocks

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding
    from weightctl.kernels import BlockRounder
    from weightctl.schemes.arrays.rounding import RoundedBlocks, Rounding


class RoundedTile(NamedTuple):
    """The codes of a tile, and the sums of the squares of its values and of their errors."""

    codes: Codes
    sums: tuple[float, float]


def round_in_one_pass(
    rounding: Rounding,
    raw: U8,
    columns: int,
    encoding: Encoding,
    peak: np.float32,
    *,
    level: int | None = None,
) -> RoundedTile | None:
    """Round rows of `columns` values, whose bytes `raw`, shape (r, bytes), are in an encoding.

    `peak` is the largest magnitude of the whole weight. Returns None if there is no kernel, and if
    a value is not finite before or after: NumPy's way then finds out which.
    """
    rounder = block_rounder(encoding.name, level)
    if rounder is None or not raw.size:
        return None
    grid = rounding.grid
    size = min(grid.columns, columns)
    codes = np.empty((len(raw), columns), np.uint8)
    scales = rounding.choose(_find_edges(rounder, raw, columns, grid), peak)
    offsets = None if scales.zeros is None else _per_row(scales.zeros, grid.rows, len(raw))
    if grid.table:
        offsets = np.array(grid.table, np.float32)
    sums = rounder.round(
        raw, columns, size or codes.size,
        kind=grid.kind, scales=_per_row(scales.held, grid.rows, len(raw)),
        offsets=offsets,
        most=grid.most, out=codes,
    )  # fmt: skip
    if not (isfinite(sums[0]) and isfinite(sums[1])):
        return None
    return RoundedTile(Codes(codes, scales.stored, scales.offsets), sums)


def _find_edges(
    rounder: BlockRounder, raw: U8, columns: int, grid: RoundedBlocks
) -> tuple[F32, ...]:
    """Return what scales are chosen for: nothing, magnitudes, or minima and maxima."""
    if not grid.columns:
        return ()
    size = min(grid.columns, columns)
    tables = np.empty((2 if grid.has_ranges else 1, len(raw), -(-columns // size)), np.float32)
    rounder.reduce(raw, columns, size, tables[0] if grid.has_ranges else None, tables[-1])
    if grid.rows > 1:
        return tuple(reduce_blocks(np.maximum, table, grid.rows, 0) for table in tables)
    return tuple(tables)


def _per_row(table: F32, rows: int, count: int) -> F32:
    """Return a table with a cell for each block, with a cell for each row of each block."""
    if rows > 1:
        table = np.repeat(table, rows, axis=0)[:count]
    return np.ascontiguousarray(table, np.float32)


def find_magnitude(raw: U8, encoding: Encoding) -> np.float32 | None:
    """Return the largest magnitude of values, None without kernels or if one is not finite."""
    rounder = block_rounder(encoding.name)
    if rounder is None or not raw.size:
        return None
    count = raw.size // encoding.size * encoding.block
    made = np.empty(1, np.float32)
    rounder.reduce(raw, count, count, None, made)
    found: np.float32 = made[0]
    return found if np.isfinite(found) else None
