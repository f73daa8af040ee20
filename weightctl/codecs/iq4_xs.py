"""IQ4_XS: 256 numbers in 4 bits each, at sixteen uneven levels, in eight sub-blocks of 32.

A sub-block whose scale overflows to NaN, as it does where its numbers are beyond 1e17, becomes
zeros; ggml's does too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.base import tiles
from weightctl.codecs.codebook import fit_scale, importance_weights, nearest, packed, unpacked
from weightctl.codecs.search import first_peak, nearest_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

__all__ = ["BLOCK", "decode", "encode"]

# ggml's `block_iq4_xs`. A sub-block's scale has 6 bits, 32 more than its value: the low four are in
# `low`, those of an even sub-block below those of the next, the high two in `high` from bit 0 on.
BLOCK = np.dtype([("scale", "<f2"), ("high", "<u2"), ("low", "u1", 4), ("q", "u1", (8, 16))])
assert BLOCK.itemsize == 136  # noqa: S101  (the layout itself, not a check of input)

_TILE = 256  # blocks
_HIGH_SHIFTS = np.arange(0, 16, 2, dtype=np.uint16)


def encode(rows: F32, importance: F32 | None, out: U8) -> None:
    """Fill `out`, shape (r, n // 256 * 136), with the blocks of `rows`, shape (r, n).

    The bytes are those of ggml's `quantize_iq4_xs`.
    """
    blocks = out.view(BLOCK)
    x = rows.reshape(*blocks.shape, 256)
    with np.errstate(all="ignore"):
        for tile in tiles(blocks.shape, _TILE):
            part = x[tile]
            if importance is None:
                weights = part * part
            else:
                weights = importance_weights(part, importance.reshape(-1, 256)[tile[1]])
            block = np.empty(part.shape[:2], BLOCK)
            _encode(part, weights, block.reshape(-1))
            blocks[tile] = block


def _encode(x: F32, weights: F32, block: NDArray[np.void]) -> None:
    """Fill `block`, shape (b,), with numbers of b times 256. Lane 8 * i + s is sub-block s of i."""
    lanes = np.ascontiguousarray(x.reshape(-1, 32).T)
    fitted = fit_scale(lanes, np.ascontiguousarray(weights.reshape(-1, 32).T)).reshape(-1, 8)
    scale = -first_peak(fitted.T) / np.float32(32)
    inverse = np.where(scale != 0, 1 / scale, np.float32(0))
    whole = np.clip(nearest_int(inverse[:, None] * fitted), -32, 31)

    sub_scale = scale[:, None] * whole.astype(np.float32)
    inverse = np.where(sub_scale != 0, 1 / sub_scale, np.float32(0))
    level = nearest(lanes * inverse.reshape(-1))
    block["scale"] = scale
    block["q"] = packed(level.T.reshape(-1, 8, 32))
    stored = (whole + 32).astype(np.uint8)
    block["low"] = stored[:, ::2] & 15 | stored[:, 1::2] << 4
    block["high"] = np.bitwise_or.reduce(stored.astype(np.uint16) >> 4 << _HIGH_SHIFTS, axis=1)


def decode(blocks: U8, out: F32) -> None:
    """Fill `out`, shape (r, n), with the values of `blocks`, shape (r, n // 256 * 136)."""
    block = blocks.view(BLOCK)
    values = out.reshape(*block.shape, 8, 32)
    with np.errstate(all="ignore"):
        for tile in tiles(block.shape, _TILE):
            part = block[tile]
            stored = (part["high"][..., None] >> _HIGH_SHIFTS & 3).astype(np.int8) << 4
            stored[..., ::2] |= (part["low"] & 15).view(np.int8)
            stored[..., 1::2] |= (part["low"] >> 4).view(np.int8)
            scale = part["scale"].astype(np.float32)[..., None] * (stored - np.int8(32))
            level = unpacked(part["q"])
            np.multiply(level, scale[..., None], out=values[tile], dtype=np.float32)
