"""MXFP4: 32 numbers as 4-bit floats (E2M1) times one power of two (E8M0).

Where all magnitudes are below 2**-125 the exponent is 0, the least. ggml has no defined result
there: it converts a negative number to a byte, and writes exponents such as 255, which is NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs import e2m1
from weightctl.codecs.base import tiles

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8

__all__ = ["BLOCK", "decode", "encode"]

# ggml's `block_mxfp4`.
BLOCK = np.dtype([("exponent", "u1"), ("q", "u1", 16)])
assert BLOCK.itemsize == 17  # noqa: S101  (the layout itself, not a check of input)

_TILE = 1024  # blocks


def encode(rows: F32, importance: F32 | None, out: U8) -> None:  # noqa: ARG001
    """Fill `out`, shape (r, n // 32 * 17), with the blocks of `rows`, shape (r, n).

    The bytes are those of ggml's `quantize_mxfp4`; as there, `importance` changes nothing.
    """
    blocks = out.view(BLOCK)
    x = rows.reshape(*blocks.shape, 32)
    with np.errstate(all="ignore"):
        for tile in tiles(blocks.shape, _TILE):
            exponent = _exponents(np.maximum(x[tile].max(axis=2), -x[tile].min(axis=2)))
            blocks[tile]["exponent"] = exponent
            blocks[tile]["q"] = e2m1.packed(e2m1.nearest(x[tile], _half_scales(exponent)))


def _exponents(peak: F32) -> U8:
    """Return E8M0 exponents such that peaks become 4 to 8, of which 6 is the greatest there is."""
    # ggml takes the floor of a float32: just below a power of two it has been rounded up to that.
    logarithm = np.log2(peak.astype(np.float64)).astype(np.float32)
    return np.clip(np.floor(logarithm) + np.float32(127 - 2), 0, 255).astype(np.uint8)


def _half_scales(exponent: U8) -> F32:
    return np.ldexp(np.float32(1), exponent.astype(np.int32) - 128)


def decode(blocks: U8, out: F32) -> None:
    """Fill `out`, shape (r, n), with the values of `blocks`, shape (r, n // 32 * 17).

    As in ggml, an exponent of 255 is no NaN.
    """
    block = blocks.view(BLOCK)
    values = out.reshape(*block.shape, 32)
    with np.errstate(all="ignore"):
        for tile in tiles(block.shape, _TILE):
            scale = _half_scales(block[tile]["exponent"])
            e2m1.decoded(block[tile]["q"], scale, values[tile])
