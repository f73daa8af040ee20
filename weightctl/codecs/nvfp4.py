"""NVFP4: 64 numbers as 4-bit floats (E2M1), in four sub-blocks with 8-bit scales (E4M3, unsigned).

ggml's blocks have no scale of the tensor: numbers beyond 2688 (6 times 448) become that, those some
millions of times as large zeros (float32 does not tell 0 and 2688 apart beside them), and so do the
numbers of a sub-block whose magnitudes are all below 6 / 1024.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs import e2m1
from weightctl.codecs.base import tiles

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8

__all__ = ["BLOCK", "decode", "encode"]

# ggml's `block_nvfp4`.
BLOCK = np.dtype([("scales", "u1", 4), ("q", "u1", (4, 8))])
assert BLOCK.itemsize == 36  # noqa: S101  (the layout itself, not a check of input)

_TILE = 512  # blocks


def encode(rows: F32, importance: F32 | None, out: U8) -> None:  # noqa: ARG001
    """Fill `out`, shape (r, n // 64 * 36), with the blocks of `rows`, shape (r, n).

    The bytes are those of ggml's `quantize_nvfp4`; as there, `importance` changes nothing.
    """
    blocks = out.view(BLOCK)
    x = rows.reshape(*blocks.shape, 4, 16)
    with np.errstate(all="ignore"):
        for tile in tiles(blocks.shape, _TILE):
            peak: F32 = np.maximum(x[tile].max(axis=3), -x[tile].min(axis=3))
            scales = _scales(peak / np.float32(6))
            blocks[tile]["scales"] = scales
            blocks[tile]["q"] = e2m1.packed(e2m1.nearest(x[tile], _half_scales(scales)))


def _scales(values: F32) -> U8:
    """Return values >= 0 as E4M3, half rounded up, as ggml's `ggml_fp32_to_ue4m3` does it.

    What is 248 or more becomes 448, although E4M3 has numbers between them.
    """
    bits = values.view(np.uint32)
    # The exponent and three bits of the mantissa in one: what they round up to carries over.
    rounded = (bits >> np.uint32(19)) + np.uint32(1) >> np.uint32(1)
    normal = np.minimum(rounded.astype(np.int32) - (127 - 7 << 3), 15 << 3)
    tiny = np.minimum(values * np.float32(512) + np.float32(0.5), np.float32(7)).astype(np.int32)
    stored = np.where(values < np.float32(2.0**-6), tiny, normal)
    stored[stored >= 15 << 3] = 0x7E
    return stored.astype(np.uint8)


def _half_scales(scales: U8) -> F32:
    """Return half of what unsigned E4M3 stand for; their top bit changes nothing, and 0x7F is 0."""
    exponent = (scales >> np.uint8(3) & np.uint8(15)).astype(np.int32)
    mantissa = (scales & np.uint8(7)).astype(np.float32)
    normal = np.ldexp(mantissa + np.float32(8), exponent - 11)
    values: F32 = np.where(exponent == 0, mantissa * np.float32(2.0**-10), normal)
    values[scales == 0x7F] = 0
    return values


def decode(blocks: U8, out: F32) -> None:
    """Fill `out`, shape (r, n), with the values of `blocks`, shape (r, n // 64 * 36)."""
    block = blocks.view(BLOCK)
    values = out.reshape(*block.shape, 4, 16)
    with np.errstate(all="ignore"):
        for tile in tiles(block.shape, _TILE):
            scale = _half_scales(block[tile]["scales"])
            e2m1.decoded(block[tile]["q"], scale, values[tile])
