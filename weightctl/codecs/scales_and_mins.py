"""What Q4_K and Q5_K share: eight sub-blocks of 32 numbers, each with a 6-bit scale and min."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs.base import tiles
from weightctl.codecs.search import (
    clamped_levels,
    fit_scale_and_min,
    fit_unsigned_scale,
    nearest_int,
    sum_of_squares,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

__all__ = ["Levels", "decode", "encode"]

_TILE = 512  # blocks: some ten arrays of 512 KiB are at work at a time


class Levels(NamedTuple):
    """The levels of an encoding, and the search for them where there is no importance.

    A block's fields `scale` and `min` are those of its `scales`: twelve bytes, packed.
    """

    block: np.dtype[np.void]
    most: int
    first: float
    steps: int


def encode(
    rows: F32,
    importance: F32 | None,
    out: U8,
    levels: Levels,
    pack: Callable[[U8, NDArray[np.void]], None],
) -> None:
    """Fill `out`, shape (r, n // 256 * size), with the blocks of `rows`, shape (r, n).

    `pack` puts levels of shape (32, 8, b), those of the sub-blocks side by side, into b blocks.
    """
    blocks = out.view(levels.block)
    x = rows.reshape(*blocks.shape, 256)
    with np.errstate(all="ignore"):
        for tile in tiles(blocks.shape, _TILE):
            block = np.empty(blocks[tile].shape, levels.block)
            weights = None if importance is None else importance.reshape(-1, 256)[tile[1]]
            flat = block.reshape(-1)
            pack(_fit(x[tile], weights, flat, levels), flat)
            blocks[tile] = block


def _fit(rows: F32, importance: F32 | None, block: NDArray[np.void], levels: Levels) -> U8:
    """Fill in the scales and mins of `block`, shape (r * b,); return levels (32, 8, r * b).

    The numbers have shape (r, b, 256) and `importance` (b, 256). Lanes are sub-blocks: lane
    s * r * b + i is the sub-block s of block i.
    """
    x = _lanes(rows)
    eight = (8, len(block))
    if importance is None:
        weights = _magnitude_weights(x)
        level, scale, low = fit_scale_and_min(
            x,
            weights,
            levels.most,
            first=levels.first,
            step=0.1,
            steps=levels.steps,
            saturate=False,
        )
        block_scale, scales = _round_to_greatest(scale.reshape(eight))
        block_min, mins = _round_to_greatest(low.reshape(eight))
    else:
        weights = _lanes(_importance_weights(rows, importance))
        level, scale, low = fit_scale_and_min(
            x, weights, levels.most, first=-0.9, step=0.05, steps=36, saturate=True
        )
        totals = np.add.accumulate(weights, axis=0)[-1].reshape(eight)
        scales, block_scale = fit_unsigned_scale(scale.reshape(eight), totals, 63)
        mins, block_min = fit_unsigned_scale(low.reshape(eight), totals, 63)
    block["scale"], block["min"] = block_scale, block_min
    block["scales"] = _pack_scales(scales, mins).T

    # The levels of the search belong to scales that no longer are: choose them again.
    final_scale, final_min = (values.reshape(-1) for values in _scales_and_mins(block))
    again = clamped_levels((x + final_min) / final_scale, 0, levels.most)
    np.copyto(again, level, where=final_scale == 0)
    return again.astype(np.uint8).reshape(32, 8, -1)


def _lanes(rows: F32) -> F32:
    """Return (r, b, 256) as sub-blocks side by side, shape (32, 8 * r * b)."""
    return np.ascontiguousarray(rows.reshape(-1, 8, 32).transpose(2, 1, 0)).reshape(32, -1)


def _magnitude_weights(x: F32) -> F32:
    """Return ggml's weights where there is no importance: root mean square plus magnitude."""
    mean_square: F32 = np.add.accumulate(x * x, axis=0)[-1] / np.float32(32)
    return np.sqrt(mean_square) + np.abs(x)


def _importance_weights(rows: F32, importance: F32) -> F32:
    """Return ggml's weights, shape (r, b, 256), from the importance of columns, shape (b, 256)."""
    total = sum_of_squares(rows.reshape(-1, 256)).reshape(*rows.shape[:2], 1)
    variance: F32 = np.float32(2) * total / np.float32(256)
    return importance * np.sqrt(variance + rows * rows)


def _round_to_greatest(values: F32) -> tuple[F32, U8]:
    """Return the scale (b,) that makes the greatest of (8, b) 63, and the levels (8, b) at it."""
    greatest = np.zeros(values.shape[1], np.float32)
    for row in values:
        np.copyto(greatest, row, where=row > greatest)
    inverse = np.where(greatest > 0, np.float32(63) / greatest, np.float32(0))
    levels = nearest_int(inverse * values).astype(np.uint8)
    return greatest / np.float32(63), np.minimum(levels, 63)


def _pack_scales(scales: U8, mins: U8) -> U8:
    """Return the bytes (12, b) that hold 6-bit scales (8, b) and mins (8, b)."""
    packed = np.empty((3, *scales[:4].shape), np.uint8)
    packed[0] = scales[:4] | scales[4:] >> 4 << 6
    packed[1] = mins[:4] | mins[4:] >> 4 << 6
    packed[2] = scales[4:] & 15 | mins[4:] << 4
    return packed.reshape(12, -1)


def _scales_and_mins(block: NDArray[np.void]) -> tuple[F32, F32]:
    """Return the scale and the min of each sub-block, shape (8, b), of blocks of shape (b,)."""
    first, second, third = np.ascontiguousarray(block["scales"].T).reshape(3, 4, -1)
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4])
    mins = np.concatenate([second & 63, third >> 4 | second >> 6 << 4])
    return block["scale"].astype(np.float32) * scales, block["min"].astype(np.float32) * mins


def decode(
    blocks: U8, out: F32, levels: Levels, unpack: Callable[[NDArray[np.void], F32], None]
) -> None:
    """Fill `out`, shape (r, n), with the values of `blocks`, shape (r, n // 256 * size).

    `unpack` fills an array of shape (r, b, 8, 32) with the levels of blocks of shape (r, b).
    """
    block = blocks.view(levels.block)
    values = out.reshape(*block.shape, 8, 32)
    with np.errstate(all="ignore"):
        for tile in tiles(block.shape, _TILE):
            part = values[tile]
            scale, low = _scales_and_mins(block[tile].reshape(-1))
            unpack(block[tile], part)
            part *= scale.T.reshape(*part.shape[:3], 1)
            part -= low.T.reshape(*part.shape[:3], 1)
