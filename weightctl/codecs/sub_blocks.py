"""Blocks of 256 values in sub-blocks, as in the K types, and the codec of sixteen sub-blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.base import BlockCodec
from weightctl.codecs.scale_search import clamp_levels, sum_of_squares

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

# Values at a time: about ten arrays of 512 KiB are in use.
AREA = 1 << 17


def build_codec(
    block_dtype: np.dtype[np.void],
    *,
    fit: Callable[[F32, F32 | None, NDArray[np.void]], U8],
    pack: Callable[[U8, NDArray[np.void]], None],
    unpack: Callable[[NDArray[np.void]], U8 | NDArray[np.int8]],
    scales: Callable[[NDArray[np.void]], F32],
    mins: Callable[[NDArray[np.void]], F32] | None = None,
) -> BlockCodec:
    """Return the codec of blocks of sixteen sub-blocks.

    `fit` takes values of shape (r, b, 256), their importance of shape (b, 256), and blocks of shape
    (r * b,); it stores the scales and returns the levels, one sub-block per lane. `pack` stores
    levels of shape (r * b, 256). For blocks of shape (n,), `unpack` returns the levels, shape (n,
    256), `scales` the scales of the sub-blocks, shape (16, n), and `mins` the values to subtract.
    """

    def encode(x: F32, importance: F32 | None, block: NDArray[np.void]) -> None:
        made = np.empty(block.shape, block_dtype)
        flat = made.reshape(-1)
        level = fit(x, importance, flat)
        level = np.ascontiguousarray(level.reshape(16, 16, -1).transpose(2, 1, 0))
        pack(level.reshape(-1, 256), flat)
        block[...] = made

    def decode(block: NDArray[np.void], out: F32) -> None:
        flat, sixteen = block.reshape(-1), (*block.shape, 16, -1)
        values = out.reshape(*block.shape, 16, 16)
        level, scale = unpack(flat).reshape(sixteen), scales(flat).T.reshape(sixteen)
        np.multiply(level, scale, out=values, dtype=np.float32)
        if mins is not None:
            values -= mins(flat).T.reshape(sixteen)

    return BlockCodec(block_dtype, 256, encode, decode, AREA)


def arrange_lanes(rows: F32, count: int = 16) -> F32:
    """Return (r, b, 256) with `count` sub-blocks of each block as lanes.

    The shape is (256 / count, count * r * b); lane s * r * b + i is sub-block s of block i.
    """
    length = 256 // count
    turned = rows.reshape(-1, count, length).transpose(2, 1, 0)
    return np.ascontiguousarray(turned).reshape(length, -1)


def weight_by_importance(rows: F32, importance: F32, share: float) -> F32:
    """Return ggml's weights, shape (r, b, 256), from the importance of columns, shape (b, 256).

    They grow with the square of a value plus `share` times the mean square of its block.
    """
    total = sum_of_squares(rows.reshape(-1, 256)).reshape(*rows.shape[:2], 1)
    variance: F32 = np.float32(share) * total / np.float32(256)
    return importance * np.sqrt(variance + rows * rows)


def choose_levels_again(x: F32, scale: F32, found: F32, least: int, most: int) -> U8:
    """Return the levels, less `least`, of `x` at scales that were rounded after the search.

    If a scale was rounded to 0, the result is `found`: the search's levels, less `least`.
    """
    levels = clamp_levels(x / scale, least, most)
    levels -= np.float32(least)
    np.copyto(levels, found, where=scale == 0)
    return levels.astype(np.uint8)


def pack_two_bits(levels: U8) -> U8:
    """Return the lower two bits of levels (n, 256) as bytes (n, 2, 32).

    Each half of the values is four groups of 32; the first is lowest in the bytes.
    """
    q = levels.reshape(-1, 2, 4, 32) & 3
    packed = np.empty((len(q), 2, 32), np.uint8)
    packed[...] = q[:, :, 0] | q[:, :, 1] << 2 | q[:, :, 2] << 4 | q[:, :, 3] << 6
    return packed


def unpack_two_bits(packed: U8) -> U8:
    """Return the levels (n, 256) in bytes (n, 2, 32) from `pack_two_bits`."""
    levels = np.empty((len(packed), 2, 4, 32), np.uint8)
    for group in range(4):
        levels[:, :, group] = packed >> 2 * group & 3
    return levels.reshape(-1, 256)
