"""Q5_K: 256 numbers in 5 bits each, in eight sub-blocks with 6-bit scales and mins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs import scales_and_mins

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

__all__ = ["BLOCK", "decode", "encode"]

# ggml's `block_q5_K`. Byte i of row j of `low` has the low four bits of numbers 64 * j + i and 32
# further on, as in Q4_K; bit j of byte i of `high` is the fifth bit of number 32 * j + i.
BLOCK = np.dtype(
    [
        ("scale", "<f2"),
        ("min", "<f2"),
        ("scales", "u1", 12),
        ("high", "u1", 32),
        ("low", "u1", (4, 32)),
    ]
)
assert BLOCK.itemsize == 176  # noqa: S101  (the layout itself, not a check of input)

_LEVELS = scales_and_mins.Levels(BLOCK, most=31, first=-0.5, steps=15)


def encode(rows: F32, importance: F32 | None, out: U8) -> None:
    """Fill `out`, shape (r, n // 256 * 176), with the blocks of `rows`, shape (r, n).

    The bytes are those of ggml's `quantize_q5_K`.
    """
    scales_and_mins.encode(rows, importance, out, _LEVELS, _pack)


def _pack(level: U8, block: NDArray[np.void]) -> None:
    block["high"] = np.packbits(level >> 4, axis=1, bitorder="little")[:, 0].T
    level &= 15
    block["low"] = (level[:, ::2] | level[:, 1::2] << 4).T


def decode(blocks: U8, out: F32) -> None:
    """Fill `out`, shape (r, n), with the values of `blocks`, shape (r, n // 256 * 176)."""
    scales_and_mins.decode(blocks, out, _LEVELS, _unpack)


def _unpack(block: NDArray[np.void], level: F32) -> None:
    high = np.unpackbits(block["high"][..., None, :], axis=-2, bitorder="little")
    high <<= 4
    level[..., ::2, :] = block["low"] & 15 | high[..., ::2, :]
    level[..., 1::2, :] = block["low"] >> 4 | high[..., 1::2, :]
