"""Q5_0: 32 numbers in 5 bits each and one scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.base import tiles
from weightctl.codecs.search import fit_scale, sum_of_squares

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

__all__ = ["BLOCK", "decode", "encode"]

# ggml's `block_q5_0`. Byte i of `low` has the low four bits of numbers i and i + 16; bit i of
# `high`, little endian, is the fifth bit of number i. A level of 16 is zero.
BLOCK = np.dtype([("scale", "<f2"), ("high", "u1", 4), ("low", "u1", 16)])
assert BLOCK.itemsize == 22  # noqa: S101  (the layout itself, not a check of input)

_TILE = 2048  # blocks
_LOW = np.uint64(0x0F0F0F0F0F0F0F0F)


def encode(rows: F32, importance: F32 | None, out: U8) -> None:
    """Fill `out`, shape (r, n // 32 * 22), with the blocks of `rows`, shape (r, n).

    The bytes are those of ggml's `quantize_q5_0`.
    """
    blocks = out.view(BLOCK)
    x = rows.reshape(*blocks.shape, 32)
    with np.errstate(all="ignore"):
        if importance is None:
            for tile in tiles(blocks.shape, _TILE):
                _pack(*_round(x[tile]), blocks[tile])
        else:
            weights = importance.reshape(-1, 32)
            variance = sum_of_squares(rows) / np.float32(rows.shape[1])
            for tile in tiles(blocks.shape, _TILE):
                found = _search(x[tile], weights[tile[1]], variance[tile[0]])
                _pack(*found, blocks[tile])


def _round(x: F32) -> tuple[F32, U8]:
    """Return scales (r, b) and levels (r, b, 32) of (r, b, 32): ggml's `quantize_row_q5_0_ref`."""
    first_greatest = np.abs(x).argmax(axis=2, keepdims=True)
    # Adding 0 turns -0 into 0, where ggml starts: the scale of a block of zeros is -0.
    peak = np.take_along_axis(x, first_greatest, axis=2) + np.float32(0)
    scale = peak / np.float32(-16)
    inverse = np.where(scale != 0, 1 / scale, np.float32(0))
    level = x * inverse
    level += np.float32(16.5)
    # The inverse of a subnormal scale may be infinite; ggml's levels are then 0.
    level[np.isinf(inverse[..., 0])] = 0
    return scale[..., 0], np.minimum(level.astype(np.uint8), 31)


def _search(x: F32, importance: F32, variance: F32) -> tuple[F32, U8]:
    """Return scales (r, b) and levels (r, b, 32) of (r, b, 32): ggml's `quantize_row_q5_0_impl`.

    `importance` has shape (b, 32); `variance` that of each row, shape (r,).
    """
    weights = importance * np.sqrt(variance[:, None, None] + x * x)
    lanes, lane_weights = (np.ascontiguousarray(v.reshape(-1, 32).T) for v in (x, weights))
    level, scale = fit_scale(lanes, lane_weights, 16)
    return scale.reshape(x.shape[:2]), level.T.astype(np.uint8).reshape(x.shape)


def _pack(scale: F32, level: U8, block: NDArray[np.void]) -> None:
    block["scale"] = scale
    block["low"] = level[..., :16] & 15 | level[..., 16:] << 4
    block["high"] = np.packbits(level >> 4, axis=-1, bitorder="little")


def decode(blocks: U8, out: F32) -> None:
    """Fill `out`, shape (r, n), with the values of `blocks`, shape (r, n // 32 * 22)."""
    block = blocks.view(BLOCK)
    values = out.reshape(*block.shape, 32)
    with np.errstate(all="ignore"):
        for tile in tiles(block.shape, _TILE):
            part = block[tile]
            level = np.unpackbits(part["high"], axis=-1, bitorder="little")
            level <<= 4
            # Sixteen low bits are two words here, and each word is one of a long column.
            low, words = part["low"].view(np.uint64), level.view(np.uint64)
            for i in range(2):
                words[..., i] |= low[..., i] & _LOW
                words[..., i + 2] |= low[..., i] >> np.uint64(4) & _LOW
            signed = level.view(np.int8)
            signed -= 16
            scale = part["scale"].astype(np.float32)
            np.multiply(signed, scale[..., None], out=values[tile], dtype=np.float32)
