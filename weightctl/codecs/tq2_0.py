"""TQ2_0: 256 numbers as -1, 0 or 1 in 2 bits each, times one scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.base import tiles
from weightctl.codecs.ternary import decoded, leveled

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8

__all__ = ["BLOCK", "decode", "encode"]

# ggml's `block_tq2_0`. Byte i of row j of `q` has numbers 128 * j + i (low bits), and 32, 64 and 96
# further on. A level of 1 is zero; 3, which is never written, is twice the scale.
BLOCK = np.dtype([("q", "u1", (2, 32)), ("scale", "<f2")])
assert BLOCK.itemsize == 66  # noqa: S101  (the layout itself, not a check of input)

_TILE = 256  # blocks


def encode(rows: F32, importance: F32 | None, out: U8) -> None:  # noqa: ARG001
    """Fill `out`, shape (r, n // 256 * 66), with the blocks of `rows`, shape (r, n).

    The bytes are those of ggml's `quantize_tq2_0`; as there, `importance` changes nothing.
    """
    blocks = out.view(BLOCK)
    x = rows.reshape(*blocks.shape, 256)
    with np.errstate(all="ignore"):
        for tile in tiles(blocks.shape, _TILE):
            block = blocks[tile]
            block["scale"], level = leveled(x[tile])
            q = level.reshape(*block.shape, 2, 4, 32)
            block["q"] = q[..., 0, :] | q[..., 1, :] << 2 | q[..., 2, :] << 4 | q[..., 3, :] << 6


def decode(blocks: U8, out: F32) -> None:
    """Fill `out`, shape (r, n), with the values of `blocks`, shape (r, n // 256 * 66)."""
    block = blocks.view(BLOCK)
    values = out.reshape(*block.shape, 256)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    with np.errstate(all="ignore"):
        for tile in tiles(block.shape, _TILE):
            part = block[tile]
            level = part["q"][..., None, :] >> shifts & np.uint8(3)
            decoded(level.reshape(*part.shape, 256), part["scale"], values[tile])
