"""Q8_0: 32 numbers as bytes and one scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.base import tiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

__all__ = ["BLOCK", "decode", "encode"]

# ggml's `block_q8_0`.
BLOCK = np.dtype([("scale", "<f2"), ("q", "i1", 32)])
assert BLOCK.itemsize == 34  # noqa: S101  (the layout itself, not a check of input)

_TILE = 2048  # blocks
_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))


def encode(rows: F32, importance: F32 | None, out: U8) -> None:  # noqa: ARG001
    """Fill `out`, shape (r, n // 32 * 34), with the blocks of `rows`, shape (r, n).

    As in ggml's `quantize_q8_0`, `importance` changes nothing.
    """
    blocks = out.view(BLOCK)
    x = rows.reshape(*blocks.shape, 32)
    for tile in tiles(blocks.shape, _TILE):
        _encode(x[tile], blocks[tile])


def _encode(x: F32, block: NDArray[np.void]) -> None:
    """Fill `block`, shape (r, b), with numbers of shape (r, b, 32): `quantize_row_q8_0_ref`."""
    magnitude = np.abs(x)
    peak = np.take_along_axis(magnitude, magnitude.argmax(axis=2, keepdims=True), axis=2)
    scale = peak / np.float32(127)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        inverse = np.where(scale > 0, 1 / scale, np.float32(0))
        # The inverse of a subnormal scale may be infinite; ggml's levels are then 0.
        inverse[np.isinf(inverse)] = 0
        level = x * inverse
        # Half away from zero, like C's `roundf`: adding a full half would round its predecessor up.
        level += np.copysign(_BELOW_HALF, x)
        block["q"] = level.astype(np.int8)
        block["scale"] = scale[..., 0]


def decode(blocks: U8, out: F32) -> None:
    """Fill `out`, shape (r, n), with the values of `blocks`, shape (r, n // 32 * 34)."""
    block = blocks.view(BLOCK)
    values = out.reshape(*block.shape, 32)
    with np.errstate(all="ignore"):
        for tile in tiles(block.shape, _TILE):
            scale = block[tile]["scale"].astype(np.float32)
            np.multiply(block[tile]["q"], scale[..., None], out=values[tile], dtype=np.float32)
