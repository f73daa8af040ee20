"""IQ4_NL: 32 numbers in 4 bits each, at sixteen uneven levels, and one scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.base import tiles
from weightctl.codecs.codebook import fit_scale, importance_weights, nearest, packed, unpacked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

__all__ = ["BLOCK", "decode", "encode"]

# ggml's `block_iq4_nl`.
BLOCK = np.dtype([("scale", "<f2"), ("q", "u1", 16)])
assert BLOCK.itemsize == 18  # noqa: S101  (the layout itself, not a check of input)

_TILE = 2048  # blocks


def encode(rows: F32, importance: F32 | None, out: U8) -> None:
    """Fill `out`, shape (r, n // 32 * 18), with the blocks of `rows`, shape (r, n).

    The bytes are those of ggml's `quantize_iq4_nl`.
    """
    blocks = out.view(BLOCK)
    x = rows.reshape(*blocks.shape, 32)
    with np.errstate(all="ignore"):
        for tile in tiles(blocks.shape, _TILE):
            part = x[tile]
            if importance is None:
                weights = part * part
            else:
                weights = importance_weights(part, importance.reshape(-1, 32)[tile[1]])
            _encode(part, weights, blocks[tile])


def _encode(x: F32, weights: F32, block: NDArray[np.void]) -> None:
    """Fill `block`, shape (r, b), with numbers of shape (r, b, 32)."""
    lanes = np.ascontiguousarray(x.reshape(-1, 32).T)
    scale = fit_scale(lanes, np.ascontiguousarray(weights.reshape(-1, 32).T))
    inverse = np.where(scale != 0, 1 / scale, np.float32(0))
    level = nearest(lanes * inverse).T.reshape(x.shape)
    block["scale"] = scale.reshape(block.shape)
    block["q"] = packed(level)


def decode(blocks: U8, out: F32) -> None:
    """Fill `out`, shape (r, n), with the values of `blocks`, shape (r, n // 32 * 18)."""
    block = blocks.view(BLOCK)
    values = out.reshape(*block.shape, 32)
    with np.errstate(all="ignore"):
        for tile in tiles(block.shape, _TILE):
            scale = block[tile]["scale"].astype(np.float32)
            level = unpacked(block[tile]["q"])
            np.multiply(level, scale[..., None], out=values[tile], dtype=np.float32)
