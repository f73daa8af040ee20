"""Q4_K: 256 numbers in 4 bits each, in eight sub-blocks with 6-bit scales and mins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs import scales_and_mins

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

__all__ = ["BLOCK", "decode", "encode"]

# ggml's `block_q4_K`. Byte i of row j of `q` has numbers 64 * j + i (low bits) and 32 further on.
BLOCK = np.dtype([("scale", "<f2"), ("min", "<f2"), ("scales", "u1", 12), ("q", "u1", (4, 32))])
assert BLOCK.itemsize == 144  # noqa: S101  (the layout itself, not a check of input)

_LEVELS = scales_and_mins.Levels(BLOCK, most=15, first=-1.0, steps=20)


def encode(rows: F32, importance: F32 | None, out: U8) -> None:
    """Fill `out`, shape (r, n // 256 * 144), with the blocks of `rows`, shape (r, n).

    The bytes are those of ggml's `quantize_q4_K`.
    """
    scales_and_mins.encode(rows, importance, out, _LEVELS, _pack)


def _pack(level: U8, block: NDArray[np.void]) -> None:
    block["q"] = (level[:, ::2] | level[:, 1::2] << 4).T


def decode(blocks: U8, out: F32) -> None:
    """Fill `out`, shape (r, n), with the values of `blocks`, shape (r, n // 256 * 144)."""
    scales_and_mins.decode(blocks, out, _LEVELS, _unpack)


def _unpack(block: NDArray[np.void], level: F32) -> None:
    level[..., ::2, :] = block["q"] & 15
    level[..., 1::2, :] = block["q"] >> 4
